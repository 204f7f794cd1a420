"""The judge and everything around it, in rooms; each room imports only from rooms listed after it:

commands/   classroom/   judge/   ranks/ and jobs/ side by side   inside/   walls/   lesson/
"""
