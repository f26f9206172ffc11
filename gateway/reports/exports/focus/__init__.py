"""The export `focus`: charges in the columns of the FinOps Open Cost and Usage Specification
(FOCUS) 1.2 and 1.3, https://focus.finops.org.
"""
