"""Signals: the registry of derived values that rules see, and the estimators behind them."""
