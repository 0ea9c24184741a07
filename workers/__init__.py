"""Making it happen and telling: session, rank process, runner, supervisor, pools."""
