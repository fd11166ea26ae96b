"""Training that knows no framework: epochs, decisions, checkpoints, progress.

``job`` what is asked and answered · ``adapter`` what a framework must do · ``worker`` from a job to a result
· ``loop`` epochs · ``totals`` an epoch's numbers over all ranks · ``monitor`` which epoch is kept, when to
stop · ``checkpoint`` what survives a failure · ``progress`` what the driver sees meanwhile.
"""
