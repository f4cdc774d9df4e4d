"""What is on this machine, and which chapters run with which models here."""
