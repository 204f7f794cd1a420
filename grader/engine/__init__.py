"""The judge and all that surrounds it, in rooms, and each imports only from rooms named after it:

commands/   classroom/   judge/   ranks/ and jobs/ side by side   inside/   walls/   lesson/
"""
