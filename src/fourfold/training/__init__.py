"""Loss normalization, fine-tuning, distillation, FSDP2 and step counts of the tasks."""
