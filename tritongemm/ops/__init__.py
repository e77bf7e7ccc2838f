"""The functions that users call. A call passes torch's rules, then problem, selection and plan."""
