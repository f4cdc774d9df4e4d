"""Fine-tuning: which parameters train (`methods`), how (`recipe`), and the loop (`finetune`)."""
