"""Plans for a D with few rows or columns: recipes, names, predicted times, and the choice among them."""
