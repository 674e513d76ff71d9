package interop_test

import (
	"bufio"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// An observer watches over the critical sections of many processes. Each of their
// threads has a connection of its own and says, a line each,
//
//	enter NAME alone|shared TOKEN    after it has taken the lock; TOKEN is 0 where there is none
//	exit NAME java|go CALLS          before it gives it back; it waits for the answer. CALLS is how
//	                                 often it has asked for a lock since it last said so
//	lost NAME java|go CALLS          instead of exit, if it has noticed a loss
//
// A section ends with its connection, so one of a process that was killed ends when
// the kernel says so, which is long before its lease does.
type observer struct {
	listener net.Listener
	handlers sync.WaitGroup

	mu       sync.Mutex
	inside   map[string]map[*section]struct{} // by name
	tokens   map[string]uint64                // the last one of each name
	entered  int
	calls    int
	lost     int
	faults   []string
	stopping bool
}

// section is a stay of one thread in one lock.
type section struct {
	who   string
	alone bool
}

func observe(t testing.TB) *observer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	o := &observer{listener: listener, inside: map[string]map[*section]struct{}{}, tokens: map[string]uint64{}}
	o.handlers.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			o.handlers.Go(func() { o.serve(c) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		o.handlers.Wait() // the processes have ended, and their connections with them
	})
	return o
}

func (o *observer) addr() string { return o.listener.Addr().String() }

func (o *observer) serve(c net.Conn) {
	defer c.Close()
	mine := map[string]*section{}
	defer func() {
		for name := range mine {
			o.leave(name, mine)
		}
	}()
	for lines := bufio.NewScanner(c); lines.Scan(); {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) == 4 && words[0] == "enter":
			o.enter(words[1], mine, section{c.RemoteAddr().String(), words[2] == "alone"}, words[3])
		case len(words) == 4 && words[0] == "exit":
			o.leave(words[1], mine)
			o.count(words[2], words[3])
			answer := "go on\n"
			if o.over() {
				answer = "stop\n"
			}
			if _, err := c.Write([]byte(answer)); err != nil {
				return
			}
		case len(words) == 4 && words[0] == "lost":
			o.leave(words[1], mine)
			o.count(words[2], words[3])
			o.mu.Lock()
			o.lost++
			o.mu.Unlock()
		default:
			o.fault("what is this: %q", lines.Text())
			return
		}
	}
}

func (o *observer) enter(name string, mine map[string]*section, s section, token string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.entered++
	if o.inside[name] == nil {
		o.inside[name] = map[*section]struct{}{}
	}
	for other := range o.inside[name] {
		if s.alone || other.alone {
			o.faults = append(o.faults, fmt.Sprintf("%s: %+v came while %+v was inside", name, s, *other))
			overlaps.Add(1)
		}
	}
	o.inside[name][&s] = struct{}{}
	mine[name] = &s
	if n, err := strconv.ParseUint(token, 10, 64); err != nil || n != 0 && n <= o.tokens[name] {
		o.faults = append(o.faults, fmt.Sprintf("%s: token %s after %d", name, token, o.tokens[name]))
	} else if n != 0 {
		o.tokens[name] = n
	}
}

func (o *observer) leave(name string, mine map[string]*section) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.inside[name], mine[name])
	delete(mine, name)
	sections.Add(1)
}

// count adds calls of one side.
func (o *observer) count(side, calls string) {
	n, err := strconv.Atoi(calls)
	if err != nil {
		o.fault("how many are %q calls?", calls)
		return
	}
	o.mu.Lock()
	o.calls += n
	o.mu.Unlock()
	if side == "java" {
		javaCalls.Add(int64(n))
	} else {
		goCalls.Add(int64(n))
	}
}

func (o *observer) fault(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.faults = append(o.faults, fmt.Sprintf(format, args...))
}

// stop tells every thread, at its next exit, to stop.
func (o *observer) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stopping = true
}

func (o *observer) over() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stopping
}

func TestObserver_noticesOverlapsAndOldTokens(t *testing.T) {
	before := overlaps.Load()
	o := observe(t)
	say := func(c net.Conn, line string) {
		_, err := c.Write([]byte(line + "\n"))
		require.NoError(t, err)
	}
	ask := func(c net.Conn, line string) string {
		say(c, line)
		answer, err := bufio.NewReader(c).ReadString('\n')
		require.NoError(t, err)
		return strings.TrimSpace(answer)
	}
	a, err := net.Dial("tcp", o.addr())
	require.NoError(t, err)
	defer a.Close()
	b, err := net.Dial("tcp", o.addr())
	require.NoError(t, err)
	say(a, "enter x alone 7")
	require.Equal(t, "go on", ask(a, "exit x go 0"))
	say(b, "enter x alone 8")
	say(b, "enter y shared 0")
	require.Equal(t, "go on", ask(b, "exit y go 0"))
	require.Empty(t, o.faults)
	say(a, "enter x shared 8")
	require.Equal(t, "go on", ask(a, "exit x go 0"))
	o.mu.Lock()
	require.Len(t, o.faults, 2, "an overlap, and an old token")
	o.mu.Unlock()
	b.Close()
	require.Eventually(t, func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.inside["x"]) == 0
	}, patience, 1_000_000, "a section ends with its process")
	o.stop()
	say(a, "enter x alone 9")
	require.Equal(t, "stop", ask(a, "exit x go 0"))
	overlaps.Store(before) // this one was meant
}
