"""What users call: torch's rules -> problems -> selection -> plans."""
