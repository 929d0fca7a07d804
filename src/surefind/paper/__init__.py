"""The benchmark: data sets × methods × seeds, each measurement a result file that is written once.

A benchmark that was interrupted goes on with the results that are missing, and within one with the training
checkpoint. Methods that start from the same point estimate (post-hoc LAM, PFE, the ensemble's first member,
the distance baselines) share its training.

Test and out-of-distribution data are only used to be reported. The rule for scale and prior precision, the
same for all data sets, is the default of `surefind.learning.methods`.
"""
