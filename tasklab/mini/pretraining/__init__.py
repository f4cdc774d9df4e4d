"""How the small models are pre-trained on the drawn world."""
