package redistest

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// EnvRole names the environment variable that tells a child its role.
const EnvRole = "HOLDFAST_ROLE"

// Role returns the role of this process when it is a child, or else "".
// TestMain calls the function for the role instead of running the tests.
func Role() string { return os.Getenv(EnvRole) }

// Process is a child process: this executable, run again in another role, or
// another program.
type Process struct {
	tb      TB
	role    string
	proc    *osProcess
	stdin   io.WriteCloser
	pipes   []*os.File
	readers sync.WaitGroup
	each    func(line string) // gets the lines of stdout; nil means that they are kept
	eof     chan struct{}     // closed when the output was read to its end

	mu      sync.Mutex
	lines   []string // of stdout
	next    int      // the first line that Line has not passed
	changed chan struct{}
}

// Child runs this executable again in a role, with env added to its environment
// as "NAME=value". What it writes to stderr goes to the log of the test, at
// whose end it is killed.
//
// A second process is needed wherever a test suspends or kills a client: no
// goroutine can be stopped like that together with its timers and connections.
func Child(tb TB, role string, env ...string) *Process {
	tb.Helper()
	exe, err := os.Executable()
	if err != nil {
		tb.Fatalf("redistest: child %s: %v", role, err)
	}
	cmd := exec.Command(exe)
	if flag.Lookup("test.run") != nil {
		// If TestMain forgets about roles, the child must not run the tests,
		// which would start children, which would run the tests.
		cmd.Args = append(cmd.Args, "-test.run=^$")
	}
	cmd.Env = append(os.Environ(), EnvRole+"="+role)
	cmd.Env = append(cmd.Env, env...)
	return Command(tb, role, cmd, nil)
}

// Command starts another program as Child starts this one; name is for what the
// log says. If each is not nil it gets the lines of stdout, one at a time, and
// Line finds none.
func Command(tb TB, name string, cmd *exec.Cmd, each func(line string)) *Process {
	tb.Helper()
	p, err := spawn(tb, name, cmd, each)
	if err != nil {
		tb.Fatalf("redistest: child %s: %v", name, err)
	}
	tb.Cleanup(p.Kill)
	return p
}

func spawn(tb TB, name string, cmd *exec.Cmd, each func(line string)) (*Process, error) {
	p := &Process{tb: tb, role: name, each: each, eof: make(chan struct{}), changed: make(chan struct{}, 1)}
	if p.each == nil {
		p.each = p.line
	}
	var err error
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	// Not the pipes of exec.Cmd: those are closed when the process ends, and
	// its last words with them.
	out, outW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer outW.Close()
	errs, errsW, err := os.Pipe()
	if err != nil {
		_ = out.Close()
		return nil, err
	}
	defer errsW.Close()
	cmd.Stdout, cmd.Stderr = outW, errsW
	p.pipes = []*os.File{out, errs}
	if p.proc, err = launch(cmd); err != nil {
		_, _ = out.Close(), errs.Close()
		return nil, err
	}
	p.readers.Go(func() { readLines(out, p.each) })
	p.readers.Go(func() {
		readLines(errs, func(line string) { tb.Logf("%s[%d]: %s", name, p.PID(), line) })
	})
	go func() {
		<-p.proc.done
		// Something the child started may have inherited the pipes.
		for _, f := range p.pipes {
			_ = f.SetReadDeadline(time.Now().Add(time.Second))
		}
		p.readers.Wait()
		close(p.eof)
	}()
	return p, nil
}

func readLines(f *os.File, each func(string)) {
	defer f.Close()
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadString('\n')
		if line != "" {
			each(strings.TrimRight(line, "\r\n"))
		}
		if err != nil {
			return
		}
	}
}

func (p *Process) line(line string) {
	p.mu.Lock()
	p.lines = append(p.lines, line)
	p.mu.Unlock()
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// PID returns the process ID of the child.
func (p *Process) PID() int { return p.proc.cmd.Process.Pid }

// Line waits for the next line of stdout that starts with prefix and returns
// what follows the prefix. Lines before it are passed over for good. It fails
// the test when the time is up or the child ends first.
func (p *Process) Line(prefix string, within time.Duration) string {
	p.tb.Helper()
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	for {
		if rest, ok := p.find(prefix); ok {
			return rest
		}
		select {
		case <-p.changed:
		case <-p.eof:
			// Everything was read; look once more before giving up.
			if rest, ok := p.find(prefix); ok {
				return rest
			}
			p.tb.Fatalf("redistest: child %s ended (%v) without a line %q; its output:\n%s",
				p.role, p.proc.cmdErr(), prefix, p.output())
			return ""
		case <-timeout.C:
			p.tb.Fatalf("redistest: child %s: no line %q within %v; its output:\n%s",
				p.role, prefix, within, p.output())
			return ""
		}
	}
}

func (p *Process) find(prefix string) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := p.next; i < len(p.lines); i++ {
		if rest, ok := strings.CutPrefix(p.lines[i], prefix); ok {
			p.next = i + 1
			return rest, true
		}
	}
	return "", false
}

func (p *Process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// Send writes one line to the stdin of the child.
func (p *Process) Send(line string) {
	p.tb.Helper()
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		p.tb.Fatalf("redistest: child %s: send %q: %v", p.role, line, err)
	}
}

// CloseInput ends the stdin of the child, which closes its Listen channel.
func (p *Process) CloseInput() { _ = p.stdin.Close() }

// Kill ends the child with SIGKILL, stopped or not, and returns when it is gone
// and all its output was read.
func (p *Process) Kill() {
	p.proc.kill()
	<-p.eof
}

// Stop suspends the child with SIGSTOP and returns when all of its threads are
// suspended, from when on it sends nothing more.
func (p *Process) Stop() {
	p.tb.Helper()
	if err := p.proc.stop(); err != nil {
		p.tb.Fatalf("redistest: child %s: stop: %v", p.role, err)
	}
}

// Continue lets a stopped child go on.
func (p *Process) Continue() {
	p.tb.Helper()
	if err := p.proc.cont(); err != nil {
		p.tb.Fatalf("redistest: child %s: continue: %v", p.role, err)
	}
}

// Ended is closed when the child has ended and all its output was read.
func (p *Process) Ended() <-chan struct{} { return p.eof }

// Wait waits until the child has ended and returns nil if its exit status is
// zero, or else the *exec.ExitError, or os.ErrDeadlineExceeded when the time is
// up first.
func (p *Process) Wait(within time.Duration) error {
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	select {
	case <-p.eof:
		return p.proc.err
	case <-timeout.C:
		return fmt.Errorf("redistest: child %s still runs after %v: %w", p.role, within, os.ErrDeadlineExceeded)
	}
}

// Say prints one line to stdout, in one piece, for the parent to read.
func Say(format string, args ...any) {
	_, _ = os.Stdout.WriteString(fmt.Sprintf(format, args...) + "\n")
}

// Listen returns the lines of stdin that the parent sends. The channel is closed
// at the end of stdin, at the latest when the parent has ended.
func Listen() <-chan string { return listen() }

// Two readers would take lines from each other.
var listen = sync.OnceValue(func() <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		readLines(os.Stdin, func(line string) { lines <- line })
	}()
	return lines
})
