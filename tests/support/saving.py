"""Training functions that save checkpoints, written out as a user's file."""

SAVING = '''
import os, pathlib, signal, tempfile
import runfold
from runfold.workers import files


def begin(ctx):
    """The step to begin at, and what the rank found there."""
    checkpoint = runfold.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        return int(pathlib.Path(folder, f"state-{ctx.get_world_rank()}").read_text()) + 1


def save(step, metrics, count=1, **how):
    rank = runfold.get_context().get_world_rank()
    folder = tempfile.mkdtemp(dir=os.getcwd())
    pathlib.Path(folder, f"state-{rank}").write_text(str(step))
    for number in range(1, count):
        pathlib.Path(folder, f"more-{rank}-{number}").write_text("x" * 1000)
    runfold.report(metrics, checkpoint=runfold.Checkpoint.from_directory(folder), **how)


def trains(config):
    """Every rank saves each step, in step with the others; one fails once."""
    ctx = runfold.get_context()
    first = begin(ctx)
    for step in range(first, config.get("steps", 4)):
        save(step, {"step": step, "loss": 1.0 / (step + 1)})
        runfold.barrier()
        if step == config.get("fail_at") and ctx.get_attempt() == 1:
            # Not before it is committed: what others have on their way might else come behind the failure.
            runfold.get_all_reported_checkpoints(runfold.CheckpointConsistencyMode.COMMITTED)
            runfold.barrier()
            if ctx.get_world_rank() == 1:
                raise RuntimeError("once")
            runfold.barrier()  # which rank 1 never comes to: nobody reports another step
    return first


def killed_at_file(config):
    """A rank is killed at its n-th file of the second checkpoint, in the first attempt: before it, or in its middle."""
    ctx = runfold.get_context()
    first = begin(ctx)
    if ctx.get_attempt() == 1 and ctx.get_world_rank() == config.get("rank", 1):
        put, write, copy, seen = files._LocalFiles.put, files._LocalFiles.write, files.copy, [0]

        def die():
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()

        def count():
            if config["at"] == seen[0] and not config.get("torn"):
                die()
            seen[0] += 1

        def torn_copy(source, target, chunk_bytes=1024):
            if config.get("torn") and config["at"] == seen[0] - 1:
                target.write(source.read(1))
                target.flush()
                die()
            return copy(source, target, chunk_bytes)

        def counted_put(self, source, path, chunk_bytes=1024):
            if "checkpoint_000001" in path:
                count()
            return put(self, source, path, chunk_bytes)

        def counted_write(self, path, data, **how):
            if "checkpoint_000001" in path:
                count()
            write(self, path, data, **how)

        files._LocalFiles.put, files._LocalFiles.write, files.copy = counted_put, counted_write, torn_copy
    how = {"checkpoint_upload_mode": runfold.CheckpointUploadMode[config.get("mode", "SYNC")]}
    for step in range(first, 3):
        save(step, {"step": step}, count=3, **how)
        runfold.barrier()
    return first


def loses_its_runner(config):
    """In the middle of the second upload of the first attempt, everything on the node is killed with its runner."""
    import psutil

    ctx = runfold.get_context()
    first = begin(ctx)
    if ctx.get_attempt() == 1:
        put = files._LocalFiles.put

        def last_put(self, source, path, chunk_bytes=1024):
            copied = put(self, source, path, chunk_bytes)
            if "checkpoint_000001" in path:
                next(one for one in psutil.Process().parents() if one.name() == "runfold-runner").kill()
                signal.pause()
            return copied

        files._LocalFiles.put = last_put
    for step in range(first, 3):
        save(step, {"step": step}, count=2)
        runfold.barrier()
    return first


def uneven(config):
    """Ranks report as often as they are told, one of them with files."""
    ctx = runfold.get_context()
    rank = ctx.get_world_rank()
    for index in range(config["reports"][rank]):
        if rank in config["saving"] and index in config["saving"][rank]:
            save(index, {"index": index, "rank": rank})
        else:
            runfold.report({"index": index})
    return rank


uneven.__doc__ = None


def threads(config):
    """Three threads of rank 0 save three times each, in every way, while it forks processes that cannot report."""
    import threading
    rank, modes = runfold.get_context().get_world_rank(), runfold.CheckpointUploadMode

    def work(k):
        for n in range(3):
            mode = modes.ASYNC if (k + n) % 2 else modes.SYNC
            if rank == 0:
                save(n, {"thread": k, "n": n}, checkpoint_upload_mode=mode)
            else:
                runfold.report({"thread": k, "n": n})
            runfold.report({"thread": k, "n": n})

    workers = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for one in workers:
        one.start()
    codes = set()
    for _ in range(5):
        pid = os.fork()
        if pid == 0:
            code = 0
            try:
                runfold.report({"child": True})
            except RuntimeError:
                code = 7
            os._exit(code)
        codes.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    for one in workers:
        one.join()
    return sorted(codes)


def beside(config):
    """Asynchronous uploads, then a return without waiting for them."""
    for step in range(4):
        save(step, {"step": step}, checkpoint_upload_mode=runfold.CheckpointUploadMode.ASYNC)
    return "returned"


def fails_beside(config):
    """Fails while files of its second report are on their way, with more reports behind it; once."""
    ctx = runfold.get_context()
    first = begin(ctx)
    if ctx.get_attempt() == 1:
        put = files._LocalFiles.put

        def endless_put(self, source, path, chunk_bytes=1024):
            if "checkpoint_000001" in path:
                signal.pause()
            return put(self, source, path, chunk_bytes)

        files._LocalFiles.put = endless_put
    save(first, {"step": first}, checkpoint_upload_mode=runfold.CheckpointUploadMode.ASYNC)
    save(first + 1, {"step": first + 1}, checkpoint_upload_mode=runfold.CheckpointUploadMode.ASYNC)
    for step in (2, 3):
        runfold.report({"step": first + step})
    while not runfold.get_all_reported_checkpoints(runfold.CheckpointConsistencyMode.COMMITTED, timeout_s=0.2):
        pass
    if ctx.get_attempt() == 1:
        raise RuntimeError("once")
    return first


def asked(config):
    """Saves when somebody asks for it."""
    import time
    step = 0
    while True:
        wanted = runfold.should_checkpoint(together=True)
        if wanted:
            save(step, {"step": step})
        else:
            runfold.report({"step": step})
        step += 1
        time.sleep(0.01)


def ignores(config):
    """Never asks where to begin."""
    save(0, {"step": 0})
    return "from nothing"
'''
