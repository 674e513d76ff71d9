package redistest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/rueidis"
)

// MasterSet is the name under which sentinels know the primary.
const MasterSet = "redistest"

const (
	sentinelCount    = 3
	sentinelQuorum   = 2
	sentinelReplicas = 2
	// A server that is silent for so long, in milliseconds, is down.
	sentinelDownAfter = "700"
	// Two sentinels that stand for election at once both try again after twice
	// this time.
	sentinelFailoverTimeout = "1000"
)

// Sentinel is a primary with two replicas and the three sentinels that watch
// over them, of which two must agree.
type Sentinel struct {
	servers   []*Server
	sentinels []*Server
}

// RunSentinel starts a primary, replicas and sentinels for the time of a test
// and returns when the replicas are in step and the sentinels know everybody.
func RunSentinel(tb TB) *Sentinel {
	tb.Helper()
	servers, err := startAll(1+sentinelReplicas, Options{config: "# Sentinels keep here what it replicates.\n"})
	s := &Sentinel{servers: servers}
	tb.Cleanup(s.Stop)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	primary := servers[0]
	for _, r := range servers[1:] {
		r.Follow(tb, primary)
		r.Do(tb, "CONFIG", "REWRITE")
		r.setPrimary(nil) // the file knows it from now on
	}
	config := strings.Join([]string{
		fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d %d", MasterSet, primary.port, sentinelQuorum),
		"sentinel down-after-milliseconds " + MasterSet + " " + sentinelDownAfter,
		"sentinel failover-timeout " + MasterSet + " " + sentinelFailoverTimeout,
		"sentinel parallel-syncs " + MasterSet + " " + strconv.Itoa(sentinelReplicas),
		"",
	}, "\n")
	if s.sentinels, err = startAll(sentinelCount, Options{config: config, sentinel: true}); err != nil {
		tb.Fatalf("%v", err)
	}
	for _, w := range s.sentinels {
		// They meet and look after each other in seconds otherwise. And a slow
		// machine is no reason to stop working for half a minute.
		w.Do(tb, "SENTINEL", "DEBUG", "INFO-PERIOD", "500", "PUBLISH-PERIOD", "300", "ASK-PERIOD", "300",
			"PING-PERIOD", "200", "TILT-TRIGGER", "60000")
	}
	s.WaitOK(tb)
	return s
}

// Servers returns the primary and the replicas, whichever is which now.
func (s *Sentinel) Servers() []*Server { return slices.Clone(s.servers) }

// Sentinels returns the sentinels.
func (s *Sentinel) Sentinels() []*Server { return slices.Clone(s.sentinels) }

// Addrs returns the addresses of the sentinels.
func (s *Sentinel) Addrs() []string { return addrs(s.sentinels) }

// Stop kills all the processes and removes their directories.
func (s *Sentinel) Stop() {
	stopAll(s.sentinels)
	stopAll(s.servers)
}

// Client returns a client that learns from the sentinels where the primary is,
// closed at the end of the test. Its client-side cache is off.
func (s *Sentinel) Client(tb TB, mod ...func(*rueidis.ClientOption)) rueidis.Client {
	tb.Helper()
	watched := func(o *rueidis.ClientOption) {
		o.InitAddress = s.Addrs()
		o.ForceSingleClient = false
		o.Sentinel.MasterSet = MasterSet
	}
	return s.servers[0].Client(tb, append([]func(*rueidis.ClientOption){watched}, mod...)...)
}

// Primary returns the server that is the primary for most of the sentinels, or
// nil while there is no such.
func (s *Sentinel) Primary() *Server {
	votes := map[string]int{}
	for _, port := range s.ask() {
		if votes[port]++; votes[port] >= sentinelQuorum {
			return s.server(port)
		}
	}
	return nil
}

// ask returns the port of the primary that each of the sentinels names.
func (s *Sentinel) ask() []string {
	ports := make([]string, len(s.sentinels))
	var wg sync.WaitGroup
	for i, w := range s.sentinels {
		if w.answers() {
			wg.Go(func() {
				text, _ := w.TryDo("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MasterSet)
				_, ports[i], _ = strings.Cut(text, " ")
			})
		}
	}
	wg.Wait()
	return slices.DeleteFunc(ports, func(port string) bool { return port == "" })
}

func (s *Sentinel) server(port string) *Server {
	for _, srv := range s.servers {
		if strconv.Itoa(srv.port) == port {
			return srv
		}
	}
	return nil
}

// Failover makes the sentinels replace the primary by one of its replicas while
// it is alive, waits until everybody knows and returns the new primary.
//
// It is not like that of a cluster: until the sentinels tell it, about a second
// later, the old primary accepts writes, which are lost then.
func (s *Sentinel) Failover(tb TB) *Server {
	tb.Helper()
	s.WaitOK(tb)
	old := s.Primary()
	await(tb, "the sentinels begin the failover", func() error {
		_, err := s.leader().TryDo("SENTINEL", "FAILOVER", MasterSet)
		return err
	})
	return s.replaced(tb, old)
}

// leader returns a sentinel that answers.
func (s *Sentinel) leader() *Server {
	for _, w := range s.sentinels {
		if w.answers() {
			return w
		}
	}
	return s.sentinels[0]
}

// KillPrimary kills the primary, waits until the sentinels have replaced it by
// one of its replicas and everybody knows, and returns the new primary. Writes
// that the replica had not got are lost.
func (s *Sentinel) KillPrimary(tb TB) *Server {
	tb.Helper()
	s.WaitOK(tb)
	old := s.Primary()
	old.Kill()
	return s.replaced(tb, old)
}

func (s *Sentinel) replaced(tb TB, old *Server) *Server {
	tb.Helper()
	await(tb, "the sentinels have replaced the primary", func() error {
		if p := s.Primary(); p == nil || p == old {
			return errors.New("they have not")
		}
		return nil
	})
	s.WaitOK(tb)
	return s.Primary()
}

// Restart starts a server again, killing it first if it still runs, and waits
// until everybody knows. A primary that was replaced while it did not run comes
// back as a primary, and is one for about a second until the sentinels make it
// a replica.
func (s *Sentinel) Restart(tb TB, srv *Server) {
	tb.Helper()
	if err := srv.Restart(); err != nil {
		tb.Fatalf("redistest: restart a server: %v", err)
	}
	s.WaitOK(tb)
}

// WaitOK waits until the sentinels that run and are not paused agree on the
// primary and know each other and its replicas, and the other servers that run
// are its replicas and in step.
func (s *Sentinel) WaitOK(tb TB) {
	tb.Helper()
	await(tb, "the sentinels have everything in order", s.inOrder)
}

func (s *Sentinel) inOrder() error {
	primary := s.Primary()
	if primary == nil || !primary.answers() {
		return errors.New("there is no primary")
	}
	p, err := primary.tryReplication()
	if err != nil {
		return err
	}
	if p["role"] != "master" {
		return fmt.Errorf("%s: its role is %s", primary.Addr(), p["role"])
	}
	for _, r := range s.servers {
		if r == primary || !r.answers() {
			continue
		}
		if err = r.inStep(primary, p.offset()); err != nil {
			return fmt.Errorf("%s: %w", r.Addr(), err)
		}
	}
	for _, w := range s.sentinels {
		if !w.answers() {
			continue
		}
		if err = s.knows(w, primary); err != nil {
			return fmt.Errorf("sentinel %s: %w", w.Addr(), err)
		}
	}
	return nil
}

// knows returns what a sentinel does not know.
func (s *Sentinel) knows(w, primary *Server) error {
	m, err := w.maps("SENTINEL", "MASTERS")
	if err != nil {
		return err
	}
	if len(m) != 1 || m[0]["port"] != strconv.Itoa(primary.port) || m[0]["flags"] != "master" {
		return fmt.Errorf("the primary is %v", m)
	}
	if m[0]["num-other-sentinels"] != strconv.Itoa(sentinelCount-1) {
		return fmt.Errorf("it knows %s others", m[0]["num-other-sentinels"])
	}
	replicas, err := w.maps("SENTINEL", "REPLICAS", MasterSet)
	if err != nil {
		return err
	}
	for _, srv := range s.servers {
		if srv == primary || !srv.answers() {
			continue
		}
		i := slices.IndexFunc(replicas, func(r map[string]string) bool { return r["port"] == strconv.Itoa(srv.port) })
		switch {
		case i < 0:
			return fmt.Errorf("it does not know %s", srv.Addr())
		case replicas[i]["flags"] != "slave":
			return fmt.Errorf("%s is %s", srv.Addr(), replicas[i]["flags"])
		case replicas[i]["master-link-status"] != "ok":
			return fmt.Errorf("the link of %s is %s", srv.Addr(), replicas[i]["master-link-status"])
		}
	}
	return nil
}

// maps runs a command that returns a list of maps.
func (s *Server) maps(args ...string) ([]map[string]string, error) {
	msg, err := s.do(args...)
	if err != nil {
		return nil, err
	}
	list, err := msg.ToArray()
	if err != nil {
		return nil, err
	}
	maps := make([]map[string]string, len(list))
	for i := range list {
		if maps[i], err = list[i].AsStrMap(); err != nil {
			return nil, err
		}
	}
	return maps, nil
}
