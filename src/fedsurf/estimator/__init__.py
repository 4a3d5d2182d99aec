"""The scikit-learn classifier, federations of tables, and saved classifiers."""
