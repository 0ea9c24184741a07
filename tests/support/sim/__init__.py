"""Everything about runfold in one process, under a seed: real deciders and planners, simulated machines between them.

scenario.py    what is played, read from a small TOML file
world.py       everybody in one place: who lives, what stands, what happened
process.py     a process: it can be killed, stopped and woken, and has clocks of its own
net.py         what is asked and sent between processes: lost, late, doubled, out of order, cut off
broker.py      the broker: what is stored survives it; it dies, is slow, fails, and runs out of room
ports.py       a controller's ports over the net, watched for what leaves before its entry is acknowledged
machines.py    controllers and the archiver as processes
voice.py       a source with a real spool
pool.py        the supervisor, deciding by the real `placing` and `Slots`
runner.py      runners, deciding by the real `plan`
rank.py        what a rank does with its life
weather.py     what goes wrong, and when
truth.py       what really happened, noted by the simulator, for the invariants
invariants.py  the promises, held against what came of it
play.py        plays a scenario under a seed
"""
