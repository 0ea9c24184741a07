"""Record the archives of the catalogue anew, all or those named.

    unshare --uts sh -c 'hostname local && .venv/bin/python tests/postmortem/record.py [NAME ...]'

Every failure is really produced, on a service of two nodes. The machine is called `local` for as long as it lasts, as
controllers are named after their machine. An archive is replaced only on purpose, as any golden log.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import msgspec

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))


def anonymous(lines: list[bytes], folder: str) -> list[bytes]:
    """Return a log's lines with paths relative, chained anew: a crash leaves a dump that names files in full.

    Also the interpreter's own files, which a stack may name. What still tells of the machine is not kept.
    """
    from runfold.events.entry import GENESIS, decode_entry, encode_entry, hash_entry
    from support.hygiene import traces_of_the_machine

    places = [folder, str(ROOT), sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix]
    found: list[bytes] = []
    previous = GENESIS
    for line in lines:
        bare = line
        for place in sorted(dict.fromkeys(places), key=len, reverse=True):
            bare = bare.replace(f"{place}/".encode(), b"")
        data = encode_entry(msgspec.structs.replace(decode_entry(bare), prev=previous))
        previous = hash_entry(data)
        found.append(data + b"\n")
    if traces := traces_of_the_machine(found):
        raise SystemExit(f"not kept, as it would tell of this machine: {traces}")
    return found


def main() -> int:
    """Produce the failures, and keep their logs as archives: without the output, which tells of the machine."""
    from runfold.replay.archive import write_archive
    from runfold.replay.history import cut_lines, link_up
    from runfold.replay.source import load
    from support.commands import Commands
    from support.producing import produce_all

    with tempfile.TemporaryDirectory(prefix="runfold-postmortem-") as folder:
        commands = Commands(Path(folder))
        try:
            produced = produce_all(commands, set(sys.argv[1:]))
        finally:
            commands.end()
        for name in sorted(produced):
            target = HERE / "archives" / name
            shutil.rmtree(target, ignore_errors=True)
            history = load(commands.data / "archive" / name)
            lines = anonymous([link.data for link in history.links], folder)
            linked = link_up(cut_lines(b"".join(lines), name))
            write_archive(msgspec.structs.replace(history, links=linked.links), target)
            print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
