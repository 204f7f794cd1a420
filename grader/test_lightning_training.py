"""x"""
from grader.engine.checks import todo
from grader.scripts import corpus
PACKAGE = "lightning"
