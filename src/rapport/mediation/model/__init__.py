"""What events mean to each side: types, rules, interpretations and the code they become."""
