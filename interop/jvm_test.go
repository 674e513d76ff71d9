package interop_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/redistest"
)

// envJars names the environment variable with the built programs to run, as PATH
// lists directories. Empty means all that are in java/target.
const envJars = "HOLDFAST_REDISSON"

const (
	// patience bounds every wait for something that should be there in no time. It is
	// shorter than a lease, at whose end a waiter looks that was not woken.
	patience = 20 * time.Second
	// startPatience is that for a JVM.
	startPatience = time.Minute
)

// findJars returns the built Java programs.
func findJars() ([]string, error) {
	if list := filepath.SplitList(os.Getenv(envJars)); len(list) > 0 {
		for _, jar := range list {
			if _, err := os.Stat(jar); err != nil {
				return nil, fmt.Errorf("%s: %w", envJars, err)
			}
		}
		return list, nil
	}
	jars, _ := filepath.Glob(filepath.Join("java", "target", "*", "participant.jar"))
	if len(jars) == 0 {
		return nil, errors.New("there is no built Java program in interop/java/target: run `make interop`, " +
			"which builds it with Maven, or name one in " + envJars)
	}
	slices.Sort(jars)
	slices.Reverse(jars) // newer versions first
	return jars, nil
}

// jvm is a Java process with Redisson in it.
type jvm struct {
	jar, version, java string
	process            *redistest.Process
	ready              chan string

	mu      sync.Mutex
	last    int
	calls   map[string]chan answer // under way
	clients int
}

// answer is what became of one command.
type answer struct {
	value        string
	err          error // a *javaError, or why there is no answer
	began, ended time.Time
}

// javaError is an exception.
type javaError struct{ class, text string }

func (e *javaError) Error() string { return e.class + ": " + e.text }

// notMine is the exception of who unlocks what it does not hold.
const notMine = "IllegalMonitorStateException"

var javaCalls atomic.Int64

// startJVM starts a Java process which ends with the test.
func startJVM(tb redistest.TB, jar string) *jvm {
	tb.Helper()
	j := &jvm{jar: jar, ready: make(chan string, 1), calls: map[string]chan answer{}}
	// Small and quick to start; a JIT that optimizes would take more time than it saves.
	cmd := exec.Command("java", "-Xmx96m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
		// A Redisson client that is shut down while it connects has its complaint.
		"-Dorg.slf4j.simpleLogger.log.io.netty.util.concurrent.DefaultPromise.rejectedExecution=off", "-jar", jar)
	j.process = redistest.Command(tb, "java", cmd, j.line)
	select {
	case versions := <-j.ready:
		j.version, j.java, _ = strings.Cut(versions, " ")
	case <-j.process.Ended():
		tb.Fatalf("the Java process ended: %v", j.process.Wait(0))
	case <-time.After(startPatience):
		tb.Fatalf("the Java process is not ready after %v", startPatience)
	}
	go func() {
		<-j.process.Ended()
		j.mu.Lock()
		defer j.mu.Unlock()
		for id, call := range j.calls {
			call <- answer{err: errors.New("the Java process has ended")}
			delete(j.calls, id)
		}
	}()
	return j
}

// line takes a line that the process has written.
func (j *jvm) line(line string) {
	words := strings.Split(line, " ")
	if words[0] == "ready" {
		j.ready <- strings.Join(words[1:], " ")
		return
	}
	for i := range words {
		words[i], _ = url.QueryUnescape(words[i])
	}
	j.mu.Lock()
	call := j.calls[words[0]]
	delete(j.calls, words[0])
	j.mu.Unlock()
	if call == nil || len(words) < 5 {
		panic("no answer to a command: " + line)
	}
	a := answer{began: nanos(words[2]), ended: nanos(words[3])}
	if words[1] == "ok" {
		a.value = words[4]
	} else {
		a.err = &javaError{words[4], words[5]}
	}
	javaCalls.Add(1)
	call <- a
}

func nanos(text string) time.Time {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return time.Unix(0, n)
}

// start sends a command.
func (j *jvm) start(client, thread, verb string, args ...string) <-chan answer {
	words := append([]string{client, thread, verb}, args...)
	for i := range words {
		words[i] = url.QueryEscape(words[i])
	}
	call := make(chan answer, 1)
	j.mu.Lock()
	j.last++
	id := strconv.Itoa(j.last)
	j.calls[id] = call
	j.mu.Unlock()
	j.process.Send(id + " " + strings.Join(words, " "))
	return call
}

// since tells whether this is a version of Redisson from that one on.
func (j *jvm) since(major, minor int) bool {
	var has [2]int
	_, _ = fmt.Sscanf(j.version, "%d.%d", &has[0], &has[1])
	return has[0] > major || has[0] == major && has[1] >= minor
}

// renewsOthersReads: until 4.4 the watchdog of one reader renewed all readers' holds.
func (j *jvm) renewsOthersReads() bool { return !j.since(4, 4) }

// kill ends the process with SIGKILL.
func (j *jvm) kill() { j.process.Kill() }

// A client is a Redisson client: to all others a process of its own.
type client struct {
	jvm      *jvm
	name, id string
}

// open makes a client, closed with the test.
func (j *jvm) open(t testing.TB, settings ...string) *client {
	t.Helper()
	j.mu.Lock()
	j.clients++
	c := &client{jvm: j, name: "client" + strconv.Itoa(j.clients)}
	j.mu.Unlock()
	c.id = get(t, j.start(c.name, "-", "open", settings...))
	t.Cleanup(func() {
		select {
		case <-j.process.Ended(): // it was killed
		default:
			<-j.start(c.name, "-", "close")
		}
	})
	return c
}

// shutdown ends the client, which unlocks nothing.
func (c *client) shutdown(t testing.TB) {
	t.Helper()
	get(t, c.jvm.start(c.name, "-", "close"))
}

// An owner is a thread of a client.
type owner struct {
	client *client
	thread string
}

func (c *client) thread(name string) *owner { return &owner{c, name} }

// start runs a command that may take its time.
func (o *owner) start(verb string, k kind, name string, args ...any) <-chan answer {
	words := []string{k.java, name}
	for _, arg := range args {
		if d, ok := arg.(time.Duration); ok {
			arg = d.Milliseconds()
		}
		words = append(words, fmt.Sprint(arg))
	}
	return o.client.jvm.start(o.client.name, o.thread, verb, words...)
}

// do runs a command and returns its value.
func (o *owner) do(t testing.TB, verb string, k kind, name string, args ...any) string {
	t.Helper()
	return get(t, o.start(verb, k, name, args...))
}

// fails runs a command that shall end in an exception, and returns its class.
func (o *owner) fails(t testing.TB, verb string, k kind, name string) string {
	t.Helper()
	var e *javaError
	require.ErrorAs(t, wait(t, o.start(verb, k, name)).err, &e)
	return e.class
}

// interrupt interrupts what the thread is doing; false if it was doing nothing any
// more.
func (o *owner) interrupt(t testing.TB) bool {
	t.Helper()
	return get(t, o.client.jvm.start(o.client.name, o.thread, "interrupt")) == "true"
}

// wait waits for the answer.
func wait(t testing.TB, call <-chan answer) answer {
	t.Helper()
	select {
	case a := <-call:
		return a
	case <-time.After(patience):
		require.Fail(t, "no answer of Java within "+patience.String())
		return answer{}
	}
}

// get waits for the value of the answer.
func get(t testing.TB, call <-chan answer) string {
	t.Helper()
	a := wait(t, call)
	require.NoError(t, a.err)
	return a.value
}

// blocked checks that there is no answer yet.
func blocked(t testing.TB, call <-chan answer, why string) {
	t.Helper()
	select {
	case a := <-call:
		require.Fail(t, why, "the answer: %v %v", a.value, a.err)
	default:
	}
}

// javaThere checks that there is a Java to run.
func javaThere() error {
	out, err := exec.Command("java", "-version").CombinedOutput()
	if err != nil {
		return fmt.Errorf("there is no Java to run (Debian: apt-get install default-jre-headless): %w %s", err, bytes.TrimSpace(out))
	}
	return nil
}
