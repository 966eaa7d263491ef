"""What trainers are given: weightfs.integrations.transformers for `Trainer` and TRL, steps for all
others, dcp for checkpoints of torch.distributed. None of it is imported by `import weightfs`.
"""
