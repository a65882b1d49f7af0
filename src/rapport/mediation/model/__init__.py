"""What events mean to each side: types, patterns, rules, interpretations and the code they become."""
