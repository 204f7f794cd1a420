"""The judge and all that surrounds it, in rooms, each of which imports only from those named after it:

commands/   classroom/   judge/   ranks/ and jobs/ side by side   inside/   walls/   lesson/
"""
