"""What people see: the commands, the loop of `watch`, what a notebook asks for.

Below it the rooms, each of which imports only from those named after it:

    classroom/   judge/   ranks/ and jobs/ side by side   walls/   lesson/
"""
