package redistest

import (
	"os"
	"os/exec"
	"runtime"
	"time"
)

// osProcess is a started command that is being waited for.
type osProcess struct {
	cmd  *exec.Cmd
	done chan struct{} // closed after the process was reaped
	err  error         // result of cmd.Wait, valid after done
}

// launch starts cmd and reaps it. The goroutine keeps its OS thread for the
// whole life of the process: the kernel sends the parent-death signal when the
// forking thread ends, and the Go runtime may end an unlocked thread any time.
func launch(cmd *exec.Cmd) (*osProcess, error) {
	p := &osProcess{cmd: cmd, done: make(chan struct{})}
	dieWithParent(cmd)
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// kill ends the process and returns once it was reaped. It works for a stopped
// process too, and does nothing for one that is gone: os.Process never signals
// a process ID which was already reaped and may belong to somebody else.
func (p *osProcess) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// stop suspends the process and returns once all of its threads are suspended:
// the signal is asynchronous, and without the wait a test could go on while
// the process still sends its last words.
func (p *osProcess) stop() error {
	if err := suspend(p.cmd.Process); err != nil {
		return err
	}
	for deadline := time.Now().Add(5 * time.Second); !suspended(p.cmd.Process.Pid); {
		select {
		case <-p.done:
			return os.ErrProcessDone
		case <-time.After(time.Millisecond):
		}
		if time.Now().After(deadline) {
			return os.ErrDeadlineExceeded
		}
	}
	return nil
}

func (p *osProcess) cont() error { return resume(p.cmd.Process) }
