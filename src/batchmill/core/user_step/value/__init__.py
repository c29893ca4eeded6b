"""Steps that other processes cannot import: functions of notebooks, lambdas, closures, objects."""
