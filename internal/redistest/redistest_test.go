package redistest_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/internal/redistest"
)

const within = 30 * time.Second

func TestMain(m *testing.M) {
	switch redistest.Role() {
	case "":
		// A cluster client that was closed may still sleep before it refreshes its
		// topology, for a second at most, or closes its connections to nodes that
		// are gone, for five.
		goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"),
			goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"))
	case "echo":
		redistest.Say("ready %d", os.Getpid())
		fmt.Fprintln(os.Stderr, "said on stderr")
		for line := range redistest.Listen() {
			redistest.Say("got %s%s", line, os.Getenv("SUFFIX"))
		}
		redistest.Say("end of input")
		os.Exit(3)
	case "orphan":
		s, err := redistest.Start(redistest.Options{})
		if err != nil {
			redistest.Say("error %v", err)
			os.Exit(1)
		}
		redistest.Say("server %d %s", s.PID(), s.Addr())
		select {}
	}
}

// wire is a client that does nothing on its own: no retries, no reconnects.
type wire struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

func dial(t *testing.T, addr string) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &wire{Conn: conn, t: t, r: bufio.NewReader(conn)}
}

// send sends the commands at once, in one write.
func (w *wire) send(commands ...string) {
	w.t.Helper()
	var b bytes.Buffer
	for _, c := range commands {
		args := strings.Split(c, " ")
		fmt.Fprintf(&b, "*%d\r\n", len(args))
		for _, a := range args {
			fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
		}
	}
	_, err := w.Write(b.Bytes())
	require.NoError(w.t, err)
}

// expect reads exactly these bytes, with spaces for the line ends.
func (w *wire) expect(replies ...string) {
	w.t.Helper()
	for _, want := range replies {
		raw := strings.ReplaceAll(want, " ", "\r\n") + "\r\n"
		got := make([]byte, len(raw))
		require.NoError(w.t, w.SetReadDeadline(time.Now().Add(within)))
		_, err := io.ReadFull(w.r, got)
		require.NoError(w.t, err, "want %q, got %q", raw, got)
		require.Equal(w.t, raw, string(got))
	}
}

// silent checks that nothing comes for a moment and that the connection is open.
func (w *wire) silent() {
	w.t.Helper()
	require.NoError(w.t, w.SetReadDeadline(time.Now().Add(30*time.Millisecond)))
	b, err := w.r.ReadByte()
	require.ErrorIs(w.t, err, os.ErrDeadlineExceeded, "byte %q", b)
}

// cut checks that the connection is closed and nothing more comes before.
func (w *wire) cut() {
	w.t.Helper()
	require.NoError(w.t, w.SetReadDeadline(time.Now().Add(within)))
	b, err := w.r.ReadByte()
	require.Error(w.t, err, "byte %q", b)
	require.NotErrorIs(w.t, err, os.ErrDeadlineExceeded)
}

func closed(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(within):
		require.FailNow(t, "the channel is not closed")
	}
}

func open(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
		require.FailNow(t, "the channel is closed")
	default:
	}
}

func proxied(t *testing.T) (*redistest.Server, *redistest.Proxy) {
	t.Helper()
	s := redistest.Run(t)
	return s, redistest.NewProxy(t, s.Addr())
}

func TestServer(t *testing.T) {
	s := redistest.Run(t)
	require.NotZero(t, s.PID())
	require.Contains(t, s.Log(), "eady to accept connections")
	c := s.Client(t)
	before := s.Calls(t)
	require.NoError(t, c.Do(t.Context(), c.B().Set().Key("k").Value("v").Build()).Error())
	require.NoError(t, c.Do(t.Context(), c.B().Eval().Script("return redis.call('get', 'k')").Numkeys(0).Build()).Error())
	since := s.Calls(t).Since(before)
	for _, handshake := range []string{"hello", "client|setinfo"} {
		delete(since, handshake) // rueidis connects once more whenever it likes
	}
	require.Equal(t, redistest.Calls{"set": 1, "eval": 1, "get": 1}, since)
	require.EqualValues(t, 1, since.Scripts())
	require.EqualValues(t, 2, since.Of("SET", "get"))
	require.Equal(t, "v", s.Do(t, "GET", "k"))
	require.Empty(t, s.Do(t, "GET", "none"))
	require.Equal(t, "v  v", s.Do(t, "MGET", "k", "none", "k"))
	require.Equal(t, "1", s.Do(t, "EXISTS", "k"))
	require.Equal(t, []string{"k"}, s.Keys(t, "*"))
	_, err := s.TryDo("NOSUCH")
	require.ErrorContains(t, err, "unknown command")
	s.Do(t, "CLIENT", "KILL", "TYPE", "normal")
	require.EqualValues(t, 1, s.Calls(t).Since(before).Of("client|kill"))
}

func TestChannels(t *testing.T) {
	s := redistest.Run(t)
	require.Empty(t, s.Channels(t))
	w := dial(t, s.Addr())
	w.send("SUBSCRIBE b", "SSUBSCRIBE a")
	w.expect("*3 $9 subscribe $1 b :1", "*3 $10 ssubscribe $1 a :1")
	require.Equal(t, []string{"a", "b"}, s.Channels(t))
}

func TestNoServer(t *testing.T) {
	_, err := redistest.Start(redistest.Options{Binary: "no-such-server"})
	require.ErrorIs(t, err, redistest.ErrNoServer)
	require.ErrorContains(t, err, "apt-get install")
	t.Setenv(redistest.EnvServer, "/no/such/server")
	_, err = redistest.Find()
	require.ErrorIs(t, err, redistest.ErrNoServer)
}

func TestStartFails(t *testing.T) {
	_, err := redistest.Start(redistest.Options{Args: []string{"--no-such-option", "1"}})
	require.ErrorContains(t, err, "no-such-option")

	s := redistest.Run(t)
	_, err = redistest.Start(redistest.Options{Port: s.Port()})
	require.ErrorContains(t, err, "the port is taken")
	require.Equal(t, "PONG", s.Do(t, "PING"))
}

func TestRestartKeepsAOF(t *testing.T) {
	s := redistest.Run(t, redistest.Options{Args: []string{"--appendonly", "yes", "--appendfsync", "always"}})
	s.Do(t, "SET", "k", "v")
	pid, port := s.PID(), s.Port()
	s.Kill()
	require.Zero(t, s.PID())
	_, err := s.TryDo("PING")
	require.ErrorIs(t, err, os.ErrProcessDone)
	require.NoError(t, s.Restart())
	require.NotEqual(t, pid, s.PID())
	require.Equal(t, port, s.Port())
	require.Equal(t, "v", s.Do(t, "GET", "k"))
}

func TestRestartWithoutAOFLosesData(t *testing.T) {
	s := redistest.Run(t)
	s.Do(t, "SET", "k", "v")
	require.NoError(t, s.Restart())
	require.Empty(t, s.Keys(t, "*"))
}

func TestPause(t *testing.T) {
	s := redistest.Run(t)
	w := dial(t, s.Addr())
	w.send("PING")
	w.expect("+PONG")
	s.Pause()
	w.send("SET k v")
	w.silent()
	s.Resume()
	w.expect("+OK")
	s.Pause()
	s.Kill()
	s.Resume()
	require.Panics(t, s.Pause)
}

func TestCluster(t *testing.T) {
	t.Parallel()
	s := redistest.Run(t, redistest.Options{Cluster: true})
	c := s.Client(t)
	require.Equal(t, rueidis.ClientModeCluster, c.Mode())
	for _, key := range []string{"a", "b", "c"} {
		require.NoError(t, c.Do(t.Context(), c.B().Set().Key(key).Value("v").Build()).Error())
	}
	require.Equal(t, []string{"a", "b", "c"}, s.Keys(t, "*"))
	require.Contains(t, s.Do(t, "CLUSTER", "INFO"), "cluster_slots_ok:16384")
	require.NoError(t, s.Restart())
	require.Contains(t, s.Do(t, "CLUSTER", "INFO"), "cluster_state:ok")
}

// A crashed test binary must leave no server.
func TestServerDiesWithItsParent(t *testing.T) {
	child := redistest.Child(t, "orphan", "TMPDIR="+t.TempDir())
	pid, addr, _ := strings.Cut(child.Line("server ", within), " ")
	n, err := strconv.Atoi(pid)
	require.NoError(t, err)
	child.Kill()
	redistest.Eventually(t, within, "the server ends", func() bool {
		// Adopted by a process which may not reap it, a zombie still has its ID.
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
			return false
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n))
	if err == nil {
		require.Contains(t, string(stat), ") Z ")
	}
}

func TestPass(t *testing.T) {
	s, p := proxied(t)
	w := dial(t, p.Addr())
	w.send("SET k v", "GET k", "GET none", "LRANGE none 0 -1", "NOSUCH")
	w.expect("+OK", "$1 v", "$-1", "*0")
	line, err := w.r.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "unknown command")
	require.EqualValues(t, 5, p.Requests())

	// Inline commands and an empty line.
	_, err = io.WriteString(w, "PING\r\n\r\nGET k\r\n")
	require.NoError(t, err)
	w.expect("+PONG", "$1 v")

	// A big value, in both directions.
	big := strings.Repeat("x", 1<<20)
	w.send("SET big "+big, "GET big")
	w.expect("+OK", "$"+strconv.Itoa(len(big))+" "+big)
	require.Equal(t, "v", s.Do(t, "GET", "k"))

	// RESP3: maps and doubles.
	w.send("HELLO 3", "CONFIG GET maxclients", "ZADD z 1.5 m", "ZSCORE z m")
	redistest.Eventually(t, within, "the double", func() bool {
		line, err := w.r.ReadString('\n')
		require.NoError(t, err)
		return line == ",1.5\r\n"
	})

	// The server sees that the client has gone.
	id := s.Do(t, "CLIENT", "LIST")
	require.Contains(t, id, w.r0(t, "CLIENT ID"))
	require.NoError(t, w.Close())
	redistest.Eventually(t, within, "the connection is closed at the server", func() bool {
		return strings.Count(s.Do(t, "CLIENT", "LIST"), "id=") == 1
	})
}

// r0 sends a command and returns its integer reply as CLIENT LIST has it.
func (w *wire) r0(t *testing.T, command string) string {
	t.Helper()
	w.send(command)
	line, err := w.r.ReadString('\n')
	require.NoError(t, err)
	return "id=" + strings.TrimSpace(line[1:]) + " "
}

func TestServerGone(t *testing.T) {
	s, p := proxied(t)
	w := dial(t, p.Addr())
	w.send("PING")
	w.expect("+PONG")
	s.Kill()
	w.cut()
	dial(t, p.Addr()).cut()
	require.NoError(t, s.Restart())
	w = dial(t, p.Addr())
	w.send("PING")
	w.expect("+PONG")
}

func TestDropReply(t *testing.T) {
	s, p := proxied(t)
	trap := p.DropReply("INCR n", 2)
	for i := range 2 {
		w := dial(t, p.Addr())
		w.send("PING", "INCR n", "ECHO never")
		w.expect("+PONG")
		w.cut()
		require.Equal(t, strconv.Itoa(i+1), s.Do(t, "GET", "n"))
	}
	closed(t, trap.Done())
	w := dial(t, p.Addr())
	w.send("INCR n")
	w.expect(":3")
}

// The client library sees an error of the connection, and the command was
// executed exactly once.
func TestDropReplyOfClient(t *testing.T) {
	s, p := proxied(t)
	c := s.Client(t, func(o *rueidis.ClientOption) {
		o.InitAddress = []string{p.Addr()}
		o.DisableRetry = true
	})
	before := s.Calls(t)
	trap := p.DropReply("INCR", 1)
	err := c.Do(t.Context(), c.B().Incr().Key("n").Build()).Error()
	require.Error(t, err)
	closed(t, trap.Done())
	require.Equal(t, "1", s.Do(t, "GET", "n"))
	require.EqualValues(t, 1, s.Calls(t).Since(before).Of("incr"))
	redistest.Eventually(t, within, "the client reconnects", func() bool {
		n, err := c.Do(t.Context(), c.B().Incr().Key("n").Build()).AsInt64()
		return err == nil && n == 2
	})
}

func TestDropReplyGivesBack(t *testing.T) {
	s, p := proxied(t)
	trap := p.DropReply("INCR", 1)
	w := dial(t, p.Addr())
	s.Pause()
	w.send("INCR n")
	redistest.Eventually(t, within, "the command is forwarded", func() bool { return p.Requests() == 1 })
	p.KillAll()
	w.cut()
	open(t, trap.Done())
	s.Resume()
	redistest.Eventually(t, within, "the trap is set again", func() bool {
		w := dial(t, p.Addr())
		w.send("INCR n")
		require.NoError(t, w.SetReadDeadline(time.Now().Add(within)))
		_, err := w.r.ReadByte()
		return err != nil
	})
	closed(t, trap.Done())
}

func TestDisarm(t *testing.T) {
	_, p := proxied(t)
	trap := p.DropReply("PING", -1)
	for range 3 {
		w := dial(t, p.Addr())
		w.send("PING")
		w.cut()
	}
	trap.Disarm()
	w := dial(t, p.Addr())
	w.send("PING")
	w.expect("+PONG")
	open(t, trap.Done())
	closed(t, p.DropReply("PING", 0).Done())
}

func TestDropReplies(t *testing.T) {
	s, p := proxied(t)
	p.DropReplies(0.5, rand.New(rand.NewPCG(1, 2)))
	answered, cut := 0, 0
	for range 40 {
		w := dial(t, p.Addr())
		w.send("INCR n")
		require.NoError(t, w.SetReadDeadline(time.Now().Add(within)))
		if _, err := w.r.ReadByte(); err == nil {
			answered++
		} else {
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
			cut++
		}
	}
	require.NotZero(t, answered)
	require.NotZero(t, cut)
	require.Equal(t, "40", s.Do(t, "GET", "n"))
	p.DropReplies(0, nil)
	w := dial(t, p.Addr())
	w.send("INCR n")
	w.expect(":41")
	p.DropReplies(1, nil)
	w.send("INCR n")
	w.cut()
}

func TestHoldReply(t *testing.T) {
	s, p := proxied(t)
	w, other := dial(t, p.Addr()), dial(t, p.Addr())
	hold := p.HoldReply("INCR n")
	open(t, hold.Held())
	w.send("PING", "INCR n", "ECHO later")
	closed(t, hold.Held())
	require.Equal(t, "1", s.Do(t, "GET", "n"))
	w.expect("+PONG")
	w.silent()
	other.send("INCR n")
	other.expect(":2")
	hold.Release()
	hold.Release()
	w.expect(":1", "$5 later")
}

func TestHoldRequest(t *testing.T) {
	s, p := proxied(t)
	w := dial(t, p.Addr())
	hold := p.HoldRequest("INCR n")
	w.send("PING", "INCR n", "ECHO later")
	closed(t, hold.Held())
	w.expect("+PONG")
	w.silent()
	require.Empty(t, s.Do(t, "GET", "n"))
	require.EqualValues(t, 1, p.Requests())
	hold.Release()
	w.expect(":1", "$5 later")
}

// A command under way reaches the server after its client has ended.
func TestHoldRequestOfGoneClient(t *testing.T) {
	s, p := proxied(t)
	w := dial(t, p.Addr())
	hold := p.HoldRequest("INCR n")
	w.send("INCR n")
	closed(t, hold.Held())
	require.NoError(t, w.Close())
	hold.Release()
	redistest.Eventually(t, within, "the command is executed", func() bool { return s.Do(t, "GET", "n") == "1" })
}

func TestHoldRequestThenDropReply(t *testing.T) {
	s, p := proxied(t)
	w := dial(t, p.Addr())
	hold, trap := p.HoldRequest("INCR"), p.DropReply("INCR", 1)
	w.send("INCR n")
	closed(t, hold.Held())
	open(t, trap.Done())
	hold.Release()
	w.cut()
	closed(t, trap.Done())
	require.Equal(t, "1", s.Do(t, "GET", "n"))
}

func TestHoldSubscribe(t *testing.T) {
	for _, resp := range []string{"2", "3"} {
		t.Run("RESP"+resp, func(t *testing.T) {
			s, p := proxied(t)
			push := map[string]string{"2": "*", "3": ">"}[resp]
			w := dial(t, p.Addr())
			w.send("HELLO "+resp, "ECHO ready")
			redistest.Eventually(t, within, "the handshake", func() bool {
				line, err := w.r.ReadString('\n')
				require.NoError(t, err)
				return line == "ready\r\n"
			})
			w.send("SUBSCRIBE a b")
			w.expect(push+"3 $9 subscribe $1 a :1", push+"3 $9 subscribe $1 b :2")

			hold := p.HoldReply("SUBSCRIBE c")
			w.send("SUBSCRIBE c")
			closed(t, hold.Held())
			require.Equal(t, []string{"a", "b", "c"}, s.Channels(t))
			require.Equal(t, "1", s.Do(t, "PUBLISH", "a", "m"))
			w.silent()
			hold.Release()
			w.expect(push+"3 $9 subscribe $1 c :3", push+"3 $7 message $1 a $1 m")

			// Messages are no replies: this is the reply to the next command.
			trap := p.DropReply("PING", 1)
			require.Equal(t, "1", s.Do(t, "PUBLISH", "b", "m"))
			w.expect(push + "3 $7 message $1 b $1 m")
			open(t, trap.Done())
			w.send("UNSUBSCRIBE", "PING")
			for range 3 {
				w.expect(push + "3 $11 unsubscribe $1")
				_, err := w.r.ReadString(':')
				require.NoError(t, err)
				_, err = w.r.ReadString('\n')
				require.NoError(t, err)
			}
			w.cut()
			closed(t, trap.Done())
		})
	}
}

func TestHoldSubscribeOfClient(t *testing.T) {
	s, p := proxied(t)
	c := s.Client(t, func(o *rueidis.ClientOption) { o.InitAddress = []string{p.Addr()} })
	hold := p.HoldReply("SUBSCRIBE")
	subscribed, got := make(chan struct{}), make(chan string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	defer func() {
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	}()
	go func() {
		ctx := rueidis.WithOnSubscriptionHook(ctx, func(s rueidis.PubSubSubscription) {
			if s.Kind == "subscribe" {
				close(subscribed)
			}
		})
		ended <- c.Receive(ctx, c.B().Subscribe().Channel("c").Build(), func(m rueidis.PubSubMessage) { got <- m.Message })
	}()
	closed(t, hold.Held())
	require.Equal(t, []string{"c"}, s.Channels(t))
	s.Do(t, "PUBLISH", "c", "m")
	open(t, subscribed)
	hold.Release()
	closed(t, subscribed)
	require.Equal(t, "m", <-got)
}

func TestAnswer(t *testing.T) {
	s, p := proxied(t)
	w := dial(t, p.Addr())
	trap := p.Answer("INCR n", "-BUSY\r\n", 2)
	w.send("PING", "INCR n", "ECHO 1", "INCR n", "INCR n", "ECHO 2")
	w.expect("+PONG", "-BUSY", "$1 1", "-BUSY", ":1", "$1 2")
	closed(t, trap.Done())
	require.EqualValues(t, 4, p.Requests())
	require.Equal(t, "1", s.Do(t, "GET", "n"))

	// Behind a held reply an answer waits as well.
	hold := p.HoldReply("ECHO")
	p.Answer("GET", "+forged\r\n", 1)
	w.send("ECHO x", "GET n", "GET n")
	closed(t, hold.Held())
	w.silent()
	hold.Release()
	w.expect("$1 x", "+forged", "$1 1")
}

func TestAnswerOfClient(t *testing.T) {
	s, p := proxied(t)
	c := s.Client(t, func(o *rueidis.ClientOption) {
		o.InitAddress = []string{p.Addr()}
		o.DisableRetry = true
	})
	p.Answer("INCR", "-LOADING Redis is loading the dataset in memory\r\n", 1)
	err := c.Do(t.Context(), c.B().Incr().Key("n").Build()).Error()
	require.ErrorContains(t, err, "LOADING")
	require.Empty(t, s.Keys(t, "*"))
}

func TestPipelineIsExact(t *testing.T) {
	s, p := proxied(t)
	w := dial(t, p.Addr())
	const n = 2000
	trap := p.DropReply("SET k1500 v", 1)
	commands := make([]string, n)
	for i := range commands {
		commands[i] = fmt.Sprintf("SET k%d v", i)
	}
	w.send(commands...)
	for range 1500 {
		w.expect("+OK")
	}
	w.cut()
	closed(t, trap.Done())
	require.Equal(t, "v", s.Do(t, "GET", "k1500"))
}

func TestBlackHole(t *testing.T) {
	s, p := proxied(t)
	lossy, quiet, leaver := dial(t, p.Addr()), dial(t, p.Addr()), dial(t, p.Addr())
	for _, w := range []*wire{lossy, quiet, leaver} {
		w.send("PING")
		w.expect("+PONG")
	}
	p.BlackHole()
	lossy.send("SET k v")
	lossy.silent()
	during := dial(t, p.Addr())
	during.send("SET k v")
	during.silent()
	require.Empty(t, s.Keys(t, "*"))
	require.EqualValues(t, 3, p.Requests())

	// The server does not learn that a client has gone.
	require.NoError(t, leaver.Close())
	lossy.silent()
	require.Equal(t, 4, strings.Count(s.Do(t, "CLIENT", "LIST"), "id="))

	p.Pass()
	during.cut()
	redistest.Eventually(t, within, "the connection of the gone client is closed", func() bool {
		return strings.Count(s.Do(t, "CLIENT", "LIST"), "id=") == 3
	})
	quiet.send("PING")
	quiet.expect("+PONG")
	lossy.send("PING")
	lossy.silent()
	p.KillAll()
	lossy.cut()
	w := dial(t, p.Addr())
	w.send("PING")
	w.expect("+PONG")
}

// Replies vanish as well, and the client does not learn that the server died.
func TestBlackHoleSwallowsReplies(t *testing.T) {
	s, p := proxied(t)
	w := dial(t, p.Addr())
	s.Pause()
	w.send("SET k v")
	redistest.Eventually(t, within, "the command is forwarded", func() bool { return p.Requests() == 1 })
	p.BlackHole()
	s.Resume()
	require.Equal(t, "k", strings.Join(s.Keys(t, "*"), " "))
	w.silent()
	s.Kill()
	w.silent()
	p.Pass()
	w.cut()
}

func TestRefuse(t *testing.T) {
	_, p := proxied(t)
	w := dial(t, p.Addr())
	w.send("PING")
	w.expect("+PONG")
	p.Refuse()
	w.cut()
	dial(t, p.Addr()).cut()
	p.Pass()
	w = dial(t, p.Addr())
	w.send("PING")
	w.expect("+PONG")
}

func TestKillAll(t *testing.T) {
	_, p := proxied(t)
	a, b := dial(t, p.Addr()), dial(t, p.Addr())
	for _, w := range []*wire{a, b} {
		w.send("PING")
		w.expect("+PONG")
	}
	p.KillAll()
	a.cut()
	b.cut()
	w := dial(t, p.Addr())
	w.send("PING")
	w.expect("+PONG")
}

func TestDelay(t *testing.T) {
	s, p := proxied(t)
	w := dial(t, p.Addr())
	const d = 100 * time.Millisecond
	p.Delay(d)
	start := time.Now()
	for range 50 {
		w.send("INCR n") // in packets of their own
	}
	for i := range 50 {
		w.expect(":" + strconv.Itoa(i+1))
	}
	took := time.Since(start)
	require.GreaterOrEqual(t, took, 2*d)
	require.Less(t, took, 40*d, "the delays add up")
	p.Pass()
	w.send("INCR n")
	w.expect(":51")
	require.Equal(t, "51", s.Do(t, "GET", "n"))
}

func TestNotRESP(t *testing.T) {
	_, p := proxied(t)
	w := dial(t, p.Addr())
	_, err := io.WriteString(w, "*1\r\n:1\r\n")
	require.NoError(t, err)
	w.cut()
}

func TestChild(t *testing.T) {
	c := redistest.Child(t, "echo", "SUFFIX=!")
	require.Equal(t, strconv.Itoa(c.PID()), c.Line("ready ", within))
	c.Send("one")
	require.Equal(t, "one!", c.Line("got ", within))
	require.ErrorIs(t, c.Wait(time.Millisecond), os.ErrDeadlineExceeded)

	c.Stop()
	c.Send("two")
	require.ErrorIs(t, c.Wait(30*time.Millisecond), os.ErrDeadlineExceeded)
	c.Continue()
	require.Equal(t, "two!", c.Line("got ", within))

	c.CloseInput()
	c.Line("end of input", within)
	var exit *exec.ExitError
	require.ErrorAs(t, c.Wait(within), &exit)
	require.Equal(t, 3, exit.ExitCode())
}

func TestCommand(t *testing.T) {
	lines := make(chan string, 2)
	c := redistest.Command(t, "cat", exec.Command("cat"), func(line string) { lines <- line })
	c.Send("one")
	c.Send("two")
	require.Equal(t, "one", <-lines)
	require.Equal(t, "two", <-lines)
	c.CloseInput()
	<-c.Ended()
	require.NoError(t, c.Wait(within))
}

func TestChildKill(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		c := redistest.Child(t, "echo")
		c.Line("ready", within)
		if stopped {
			c.Stop()
		}
		c.Kill()
		c.Kill()
		var exit *exec.ExitError
		require.ErrorAs(t, c.Wait(within), &exit)
		require.Equal(t, -1, exit.ExitCode())
	}
}

// A TestMain that does not know the role must not run the tests again.
func TestChildOfUnknownRole(t *testing.T) {
	require.NoError(t, redistest.Child(t, "no such role").Wait(within))
}

// fatal records a failure instead of failing.
type fatal struct {
	redistest.TB
	text string
}

func (f *fatal) Fatalf(format string, args ...any) {
	f.text = fmt.Sprintf(format, args...)
	panic(f)
}

func fails(t *testing.T, f func(redistest.TB)) string {
	t.Helper()
	tb := &fatal{TB: t}
	require.Panics(t, func() { f(tb) })
	return tb.text
}

func TestFailures(t *testing.T) {
	s := redistest.Run(t)
	require.Contains(t, fails(t, func(tb redistest.TB) { s.Do(tb, "NOSUCH") }), "unknown command")
	require.Contains(t, fails(t, func(tb redistest.TB) {
		redistest.Run(tb, redistest.Options{Binary: "no-such-server"})
	}), "no server binary")
	require.Contains(t, fails(t, func(tb redistest.TB) {
		redistest.Eventually(tb, time.Millisecond, "the impossible", func() bool { return false })
	}), "the impossible")
	require.Contains(t, fails(t, func(tb redistest.TB) {
		c := redistest.Child(tb, "echo")
		c.Send("said before")
		c.CloseInput()
		c.Line("never", within)
	}), "got said before")
	require.Contains(t, fails(t, func(tb redistest.TB) {
		redistest.Child(tb, "echo").Line("never", 100*time.Millisecond)
	}), `no line "never"`)
}
