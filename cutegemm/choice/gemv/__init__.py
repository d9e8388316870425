"""Plans for few rows or columns: recipes, names, their time, and the choice among them."""
