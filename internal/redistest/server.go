package redistest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// EnvServer names the environment variable which selects the server binary.
const EnvServer = "HOLDFAST_SERVER"

const (
	startTries   = 5
	readyTimeout = 30 * time.Second
	adminTimeout = 10 * time.Second
	// The bus of a cluster node listens on its port plus this.
	clusterBusOffset = 10000
)

// ErrNoServer is returned when there is no server binary to start.
var ErrNoServer = errors.New("redistest: no server binary: install redis-server or valkey-server " +
	"(Debian and Ubuntu: apt-get install redis-server), or set " + EnvServer + " to the path of one")

// errBind marks a start that failed because somebody else took the port.
var errBind = errors.New("redistest: the port is taken")

// Options says which server to start and how.
type Options struct {
	// Binary is a name to look up on PATH or a path. Empty means the value of
	// HOLDFAST_SERVER, or else redis-server, or else valkey-server.
	Binary string
	// Args are more configuration for the command line, such as "--appendonly",
	// "yes". They come last and so override what the package sets itself.
	Args []string
	// Dir is the working directory of the server. Empty means a temporary one,
	// which Stop removes.
	Dir string
	// Port is the port on 127.0.0.1. Zero means a free one.
	Port int
	// Cluster enables cluster mode and gives all the slots to this one node.
	Cluster bool
	// Clock is the clock of the server, or nil for that of the system.
	Clock *Clock

	// member is a node of a cluster that is given its slots by others.
	member bool
	// config is the first content of a configuration file, if there shall be one
	// in which the server or others keep what they change.
	config string
	// sentinel makes it a sentinel.
	sentinel bool
}

// Server is a running server process which nobody else uses.
type Server struct {
	// Binary is the path of the executable.
	Binary string

	opts    Options
	port    int
	dir     string
	ownsDir bool

	mu     sync.Mutex
	proc   *osProcess
	admin  rueidis.Client
	paused bool
	source *Server // what it replicates, and again after a restart
}

// Find returns the path of the server binary that Start uses by default.
func Find() (path string, err error) { return find("") }

func find(binary string) (string, error) {
	if binary == "" {
		binary = os.Getenv(EnvServer)
	}
	names := []string{"redis-server", "valkey-server"}
	if binary != "" {
		// What was asked for by name is never replaced by something else: a run
		// which is believed to test one server must not silently test another.
		names = []string{binary}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w (looked for %s)", ErrNoServer, strings.Join(names, ", "))
}

// Start starts a server and returns when it answers commands.
func Start(o Options) (*Server, error) {
	binary, err := find(o.Binary)
	if err != nil {
		return nil, err
	}
	s := &Server{Binary: binary, opts: o, dir: o.Dir}
	if s.dir == "" {
		if s.dir, err = os.MkdirTemp("", "redistest-"); err != nil {
			return nil, err
		}
		s.ownsDir = true
	}
	if o.config != "" {
		if err = os.WriteFile(s.configFile(), []byte(o.config), 0o600); err != nil {
			s.Stop()
			return nil, err
		}
	}
	for range startTries {
		if s.port = o.Port; s.port == 0 {
			if s.port, err = freePort(o.Cluster); err != nil {
				break
			}
		}
		// Between finding the port free and binding it anybody may take it.
		if err = s.launch(); !errors.Is(err, errBind) || o.Port != 0 {
			break
		}
	}
	if err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// Run starts a server for the time of a test. It fails the test when there is
// no server rather than skip it: a suite that is green because nothing ran
// proves nothing.
func Run(tb TB, o ...Options) *Server {
	tb.Helper()
	var opts Options
	if len(o) > 0 {
		opts = o[0]
	}
	s, err := Start(opts)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(s.Stop)
	return s
}

// Addr returns the address to connect to, "127.0.0.1:port".
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Port returns the port. It stays the same over Kill and Restart.
func (s *Server) Port() int { return s.port }

// PID returns the process ID of the server, or zero when it does not run.
func (s *Server) PID() int {
	if proc := s.process(); proc != nil {
		return proc.cmd.Process.Pid
	}
	return 0
}

// Stop kills the server and removes its temporary directory. Stopping a server
// again does nothing.
func (s *Server) Stop() {
	s.Kill()
	if s.ownsDir {
		_ = os.RemoveAll(s.dir)
	}
}

// Kill ends the server the way a crash does, with SIGKILL, and returns when
// the process is gone. Directory and port are kept for Restart.
func (s *Server) Kill() {
	s.mu.Lock()
	proc, admin := s.proc, s.admin
	s.proc, s.admin, s.paused = nil, nil, false
	s.mu.Unlock()
	if proc != nil {
		proc.kill()
	}
	if admin != nil {
		admin.Close()
	}
}

// Restart starts the server again on the same port, in the same directory and
// with the same arguments, after killing it if it still runs.
func (s *Server) Restart() error {
	s.Kill()
	var err error
	for try := range startTries {
		if err = s.launch(); !errors.Is(err, errBind) {
			return err
		}
		// The port was in use for a moment, such as for an outgoing connection.
		time.Sleep(time.Duration(try+1) * 20 * time.Millisecond)
	}
	return err
}

// Pause suspends the server with SIGSTOP and returns when it is suspended. Its
// connections stay open and the kernel still accepts new ones; nothing answers.
// It panics when that is impossible: a test which goes on in the belief that
// the server is paused proves nothing.
func (s *Server) Pause() {
	err := os.ErrProcessDone
	if proc := s.process(); proc != nil {
		s.setPaused(true)
		err = proc.stop()
	}
	if err != nil {
		panic(fmt.Errorf("redistest: pause the server: %w", err))
	}
}

// Resume lets a paused server go on. It then executes whatever clients sent in
// the meantime. For a server that is not paused or does not run it does
// nothing, so that it can be used in a clean-up.
func (s *Server) Resume() {
	if proc := s.process(); proc != nil {
		_ = proc.cont()
		s.setPaused(false)
	}
}

func (s *Server) process() *osProcess {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

func (s *Server) setPaused(paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = paused
}

// answers reports whether the server can be asked something.
func (s *Server) answers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc != nil && !s.paused
}

// Log returns everything the server has logged, over all its restarts.
func (s *Server) Log() string {
	b, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (s *Server) logFile() string { return filepath.Join(s.dir, "server.log") }

func (s *Server) configFile() string { return filepath.Join(s.dir, "server.conf") }

func (s *Server) args() []string {
	var args []string
	if s.opts.config != "" {
		args = append(args, s.configFile())
	}
	if s.opts.sentinel {
		args = append(args, "--sentinel")
	}
	args = append(args,
		"--bind", "127.0.0.1", "--port", strconv.Itoa(s.port), "--dir", s.dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no", "--protected-mode", "no",
		// Not the snapshot of its primary: a former replica would start with it.
		"--repl-diskless-sync-delay", "0", "--rdb-del-sync-files", "yes",
	)
	if s.opts.Cluster {
		// A node that never met another one does not know its own address.
		args = append(args, "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1")
	}
	if source := s.primary(); source != nil {
		args = append(args, "--replicaof", "127.0.0.1", strconv.Itoa(source.port))
	}
	return append(args, s.opts.Args...)
}

// launch starts the process on s.port and waits until it is ready.
func (s *Server) launch() error {
	// Configuration errors are printed before a log file would be open, so the
	// output itself is the log.
	logged, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer logged.Close()
	from, err := logged.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	cmd := exec.Command(s.Binary, s.args()...)
	cmd.Dir = s.dir
	cmd.Stdout, cmd.Stderr = logged, logged
	if s.opts.Clock != nil {
		cmd.Env = append(os.Environ(), s.opts.Clock.env()...)
	}
	proc, err := launch(cmd)
	if err != nil {
		return fmt.Errorf("redistest: start %s: %w", s.Binary, err)
	}
	s.mu.Lock()
	s.proc = proc
	s.mu.Unlock()

	deadline := time.Now().Add(readyTimeout)
	err = s.awaitReady(proc, deadline)
	if err == nil && s.opts.Clock != nil {
		err = s.opts.Clock.check(proc.cmd.Process.Pid)
	}
	if err == nil && s.opts.Cluster && !s.opts.member {
		err = s.ownSlots(deadline)
	}
	if err == nil {
		return nil
	}
	s.Kill()
	tail := s.Log()
	tail = tail[min(int(from), len(tail)):]
	if strings.Contains(tail, "Address already in use") {
		err = errBind
	}
	const keep = 2000
	return fmt.Errorf("%w\n%s: %s", err, filepath.Base(s.Binary), tail[max(0, len(tail)-keep):])
}

// awaitReady polls until the server answers: it has no event for that.
func (s *Server) awaitReady(proc *osProcess, deadline time.Time) error {
	var last error
	for time.Now().Before(deadline) {
		if last = s.ping(proc.cmd.Process.Pid); last == nil {
			return nil
		}
		select {
		case <-proc.done:
			return fmt.Errorf("redistest: the server ended while starting: %w", proc.cmdErr())
		case <-time.After(3 * time.Millisecond):
		}
	}
	return fmt.Errorf("redistest: the server is not ready after %v: %w", readyTimeout, last)
}

func (p *osProcess) cmdErr() error {
	if p.err == nil {
		return errors.New("exit status 0")
	}
	return p.err
}

// ping checks that the server answers, and that the one that answers is ours:
// if somebody else took the port first, their server would say PONG as well.
func (s *Server) ping(pid int) error {
	conn, err := net.DialTimeout("tcp", s.Addr(), time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err = io.WriteString(conn, "PING\r\nINFO server\r\n"); err != nil {
		return err
	}
	r := bufio.NewReader(conn)
	pong, _, err := readValue(r, nil)
	if err != nil {
		return err
	}
	if bytes.HasPrefix(pong, []byte("-NOAUTH")) {
		return nil
	}
	if string(pong) != "+PONG\r\n" {
		return fmt.Errorf("PING: %s", pong)
	}
	info, _, err := readValue(r, nil)
	if err != nil {
		return err
	}
	if !bytes.Contains(info, fmt.Appendf(nil, "process_id:%d\r", pid)) {
		return errors.New("another process answers on the port")
	}
	return nil
}

// ownSlots gives all the slots to the node, unless it remembers having them,
// and waits until it serves them.
func (s *Server) ownSlots(deadline time.Time) error {
	info, err := s.TryDo("CLUSTER", "INFO")
	if err != nil {
		return err
	}
	if strings.Contains(info, "cluster_slots_assigned:0\r") {
		if _, err = s.TryDo("CLUSTER", "ADDSLOTSRANGE", "0", "16383"); err != nil {
			return err
		}
	}
	for time.Now().Before(deadline) {
		if info, err = s.TryDo("CLUSTER", "INFO"); err != nil {
			return err
		}
		if strings.Contains(info, "cluster_state:ok") {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return fmt.Errorf("redistest: the cluster is not ready: %s", info)
}

// Client returns a client connected straight to the server, closed at the end
// of the test. Its client-side cache is off. To go through a proxy set
// InitAddress in mod.
func (s *Server) Client(tb TB, mod ...func(*rueidis.ClientOption)) rueidis.Client {
	tb.Helper()
	o := rueidis.ClientOption{
		InitAddress:       []string{s.Addr()},
		DisableCache:      true,
		ForceSingleClient: !s.opts.Cluster,
	}
	for _, m := range mod {
		m(&o)
	}
	c, err := rueidis.NewClient(o)
	if err != nil {
		tb.Fatalf("redistest: client for %s: %v", strings.Join(o.InitAddress, ","), err)
	}
	tb.Cleanup(c.Close)
	return c
}

// Do runs one command over a connection of its own, the administrator's, which
// no proxy disturbs, and returns the reply as text: the elements of an array
// are joined by spaces and nil is empty. An error fails the test.
func (s *Server) Do(tb TB, args ...string) string {
	tb.Helper()
	text, err := s.TryDo(args...)
	if err != nil {
		tb.Fatalf("redistest: %s: %v", strings.Join(args, " "), err)
	}
	return text
}

// TryDo is Do which returns the error.
func (s *Server) TryDo(args ...string) (string, error) {
	msg, err := s.do(args...)
	if err != nil {
		return "", err
	}
	v, err := msg.ToAny()
	if rueidis.IsRedisNil(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return text(v), nil
}

func text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = text(v[i])
		}
		return strings.Join(parts, " ")
	default:
		return fmt.Sprint(v)
	}
}

func (s *Server) do(args ...string) (rueidis.RedisMessage, error) {
	if len(args) == 0 {
		return rueidis.RedisMessage{}, errors.New("redistest: no command")
	}
	c, err := s.administrator()
	if err != nil {
		return rueidis.RedisMessage{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	msg, err := c.Do(ctx, c.B().Arbitrary(args...).Build()).ToMessage()
	if rueidis.IsRedisNil(err) {
		err = nil
	}
	return msg, err
}

func (s *Server) administrator() (rueidis.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return nil, os.ErrProcessDone
	}
	if s.admin != nil {
		return s.admin, nil
	}
	// RESP2 has fewer types to turn into text, a command runs once or fails,
	// and neither client info nor keep-alive pings show up in the statistics.
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress:       []string{s.Addr()},
		Dialer:            net.Dialer{Timeout: adminTimeout, KeepAlive: -1},
		ConnWriteTimeout:  adminTimeout,
		ClientSetInfo:     rueidis.DisableClientSetInfo,
		AlwaysRESP2:       true,
		DisableCache:      true,
		DisableRetry:      true,
		ForceSingleClient: true,
	})
	if err != nil {
		return nil, err
	}
	s.admin = c
	return c, nil
}

// Calls counts the calls of each command by its name in lower case. A command
// with subcommands is counted by both, such as "client|kill".
//
// The server counts the commands that a script calls like those that a client
// sends. To know how many scripts a client ran, use Scripts and do not add up
// everything. A command that failed was called too, such as an EVALSHA of a
// script the server does not know.
type Calls map[string]int64

// Calls reads the command statistics of the server.
func (s *Server) Calls(tb TB) Calls {
	tb.Helper()
	c := Calls{}
	for line := range strings.Lines(s.Do(tb, "INFO", "commandstats")) {
		name, stats, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok {
			continue
		}
		digits, _, _ := strings.Cut(stats, ",")
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			tb.Fatalf("redistest: INFO commandstats: %q", line)
		}
		c[strings.ToLower(name)] = n
	}
	return c
}

// Since returns the calls made after before was read, without the commands that
// were not called. INFO is left out, for it is the measurement itself. Clients
// may connect at any time, so HELLO and CLIENT SETINFO can be among the calls.
func (c Calls) Since(before Calls) Calls {
	diff := Calls{}
	for name, n := range c {
		if d := n - before[name]; d != 0 && name != "info" {
			diff[name] = d
		}
	}
	return diff
}

// Of returns the calls of the named commands together.
func (c Calls) Of(names ...string) int64 {
	var sum int64
	for _, name := range names {
		sum += c[strings.ToLower(name)]
	}
	return sum
}

// Scripts returns how many scripts were run, whichever way they were sent.
func (c Calls) Scripts() int64 { return c.Of("eval", "evalsha", "eval_ro", "evalsha_ro") }

// Channels returns the channels that have subscribers, sharded ones too.
func (s *Server) Channels(tb TB) []string {
	tb.Helper()
	channels := s.list(tb, "PUBSUB", "CHANNELS", "*")
	// Servers before version 7 have no sharded channels.
	if msg, err := s.do("PUBSUB", "SHARDCHANNELS", "*"); err == nil {
		if sharded, err := msg.AsStrSlice(); err == nil {
			channels = append(channels, sharded...)
		}
	}
	sort.Strings(channels)
	return channels
}

// Keys returns the keys that match the pattern, sorted.
func (s *Server) Keys(tb TB, pattern string) []string {
	tb.Helper()
	return s.list(tb, "KEYS", pattern)
}

func (s *Server) list(tb TB, args ...string) []string {
	tb.Helper()
	msg, err := s.do(args...)
	if err != nil {
		tb.Fatalf("redistest: %s: %v", strings.Join(args, " "), err)
	}
	list, err := msg.AsStrSlice()
	if err != nil {
		tb.Fatalf("redistest: %s: %v", strings.Join(args, " "), err)
	}
	sort.Strings(list)
	return list
}

// freePort finds a port on which nothing listens at the moment.
func freePort(cluster bool) (int, error) {
	for range 100 {
		port, err := listenable(0)
		if err != nil {
			return 0, err
		}
		if !cluster {
			return port, nil
		}
		if bus := port + clusterBusOffset; bus <= 65535 {
			if _, err = listenable(bus); err == nil {
				return port, nil
			}
		}
	}
	return 0, errors.New("redistest: no free port whose cluster bus port is free")
}

func listenable(port int) (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
