package holdfasttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/reentrant"
)

// TB is the part of [testing.TB] that this package uses; *testing.T, *testing.B
// and *testing.F have it.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(fn func())
}

// New returns a session on a server of its own. Both are closed with the test.
func New(tb TB, o ...holdfast.SessionOptions) *holdfast.Session {
	tb.Helper()
	return NewServer(tb).Session(o...)
}

// A Server is a server inside the test, and all that can happen to locks on it.
// It may be used from many goroutines.
//
// The names of locks are full names, as the method Name of a lock returns them:
// with the session's prefix, and with the id of For.
type Server struct {
	tb    TB
	redis *miniredis.Miniredis
	hand  rueidis.Client // our own, which is never in trouble

	mu        sync.Mutex // guards what follows
	others    int        // that have taken locks
	trouble   trouble    // of clients to come
	processes []*process // in the order in which they were made
}

// releaseBackOff is more than how long a release waits before it is tried again.
const releaseBackOff = 200 * time.Millisecond

// A process is one client and its way to the server.
type process struct {
	session *holdfast.Session // nil for a bare client
	options holdfast.SessionOptions
	way     *way
}

// NewServer returns an empty server. It is closed with the test.
func NewServer(tb TB) *Server {
	tb.Helper()
	s := &Server{tb: tb, redis: miniredis.NewMiniRedis()}
	s.redis.ClockTTL(true)
	tb.Cleanup(s.redis.Close)
	s.hand = s.connect(&process{})
	return s
}

// Session returns a session with a client of its own, as another process has
// one. Each session that is not closed has a Label of its own; without one it gets
// "process-1", "process-2" and so on. Its Family is always
// [holdfast.FamilyPublish]. It is closed with the test: what is still held then is
// lost with [holdfast.ReasonClosed].
func (s *Server) Session(o ...holdfast.SessionOptions) *holdfast.Session {
	s.tb.Helper()
	p := &process{}
	switch len(o) {
	case 0:
	case 1:
		p.options = o[0]
	default:
		s.tb.Fatalf("holdfasttest: %d SessionOptions, want one at most", len(o))
	}
	client := s.connect(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 1
	for _, q := range s.processes {
		if q.session == nil {
			continue
		}
		n++
		if q.options.Label == p.options.Label && !q.closed() {
			s.tb.Fatalf("holdfasttest: another session has the Label %q", p.options.Label)
		}
	}
	if p.options.Label == "" {
		p.options.Label = fmt.Sprint("process-", n)
	}
	p.options.Family = holdfast.FamilyPublish // all that miniredis has
	session, err := holdfast.New(client, p.options)
	if err != nil {
		s.tb.Fatalf("holdfasttest: %v", err)
	}
	s.tb.Cleanup(func() {
		late := p.closed() && p.way.hadTrouble()
		p.way.become(passing)
		over, cancel := context.WithCancel(context.Background())
		cancel() // who has not unlocked by now will not
		_ = session.Close(over)
		if late {
			// The test has closed it while nothing went through, and a release may be about
			// to be tried for the last time. A bubble must not end before.
			time.Sleep(releaseBackOff)
		}
	})
	p.session = session
	s.processes = append(s.processes, p)
	return session
}

// closed reports whether p's session is closed.
func (p *process) closed() bool {
	_, err := reentrant.New(p.session, "x", holdfast.Options{})
	return errors.Is(err, holdfast.ErrClosed)
}

// owns reports whether p's session is the one of that owner.
func (p *process) owns(owner string) bool {
	if p.session == nil || p.closed() {
		return false
	}
	rest, ok := strings.CutPrefix(owner, p.options.Label+"/")
	return ok && !strings.Contains(rest, "/") // else it is of a longer label
}

// Client returns a client, for what the code under test keeps in Redis beside its
// locks. It is closed with the test.
func (s *Server) Client() rueidis.Client {
	s.tb.Helper()
	p := &process{}
	client := s.connect(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes = append(s.processes, p)
	return client
}

// connect makes p's way and its client.
func (s *Server) connect(p *process) rueidis.Client {
	s.tb.Helper()
	s.mu.Lock()
	p.way = &way{dial: s.redis.Dial, trouble: s.trouble, conns: map[*conn]struct{}{}}
	s.mu.Unlock()
	client, err := rueidis.NewClient(p.way.clientOption())
	if client == nil || err != nil && p.way.is() == passing {
		s.tb.Fatalf("holdfasttest: %v", err)
	}
	s.tb.Cleanup(func() {
		p.way.become(passing)
		client.Close()
	})
	return client
}

// Down cuts the connections of these sessions, of all clients if none is given,
// and refuses new ones, until [Server.Up].
func (s *Server) Down(sessions ...*holdfast.Session) { s.become(refusing, sessions) }

// Hang leaves these sessions, all clients if none is given, without any answer,
// as a network does that loses every packet, until [Server.Up]. Each command then
// fails after [holdfast.SessionOptions.Timeout].
func (s *Server) Hang(sessions ...*holdfast.Session) { s.become(hanging, sessions) }

// Up ends [Server.Down] and [Server.Hang], for these sessions or for all. Clients
// connect again when they are next used, or a moment later.
func (s *Server) Up(sessions ...*holdfast.Session) { s.become(passing, sessions) }

func (s *Server) become(t trouble, sessions []*holdfast.Session) {
	s.tb.Helper()
	s.mu.Lock()
	var ways []*way
	if len(sessions) == 0 {
		s.trouble = t
		for _, p := range s.processes {
			ways = append(ways, p.way)
		}
	}
	for _, session := range sessions {
		for _, p := range s.processes {
			if p.session == session && session != nil {
				ways = append(ways, p.way)
			}
		}
	}
	s.mu.Unlock()
	if len(ways) < len(sessions) {
		s.tb.Fatalf("holdfasttest: the session is not of this server")
	}
	for _, w := range ways {
		w.become(t)
	}
}

// Owner is the owner field of the lock's holder, as [holdfast.Lease.Owner]
// returns it; it begins with the Label of the holder's session. It is empty if
// the lock is free.
func (s *Server) Owner(name string) string {
	s.tb.Helper()
	owners, err := s.redis.HKeys(name)
	switch {
	case errors.Is(err, miniredis.ErrKeyNotFound):
		return ""
	case err != nil || len(owners) != 1:
		s.tb.Fatalf("holdfasttest: %q is no lock: %v %v", name, owners, err)
		return ""
	}
	return owners[0]
}

// Left is how long Redis keeps the lock unless it is renewed, 0 if it is free.
func (s *Server) Left(name string) time.Duration { return s.redis.TTL(name) }

// Take has somebody else take the lock for d, whoever holds it, and not renew it:
// as if another process had it and then crashed. A holder from whom it is taken
// learns of it at its next renewal ([holdfast.ReasonTaken]), within a third of
// its lease. The function it returns gives the lock back, if it is still that
// one's, and wakes the waiters. Its [Server.Owner] is "somebody else 1", and then
// "somebody else 2" and so on.
func (s *Server) Take(name string, d time.Duration) (release func()) {
	s.tb.Helper()
	s.mu.Lock()
	s.others++
	owner := fmt.Sprint("somebody else ", s.others)
	s.mu.Unlock()
	s.run(`redis.call('DEL', KEYS[1])
		redis.call('HSET', KEYS[1], ARGV[1], 1)
		redis.call('PEXPIRE', KEYS[1], ARGV[2])`, name, owner, core.Millis(d))
	return func() {
		s.tb.Helper()
		s.run(`if redis.call('HDEL', KEYS[1], ARGV[1]) == 1 then
				redis.call('PUBLISH', ARGV[2], '0')
			end`, name, owner, core.Prefixed("redisson_lock__channel", name))
	}
}

// run runs a script, so that nobody sees half of what it does.
func (s *Server) run(script, key string, args ...string) {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cmd := s.hand.B().Eval().Script(script).Numkeys(1).Key(key).Arg(args...).Build()
	if err := s.hand.Do(ctx, cmd).Error(); err != nil && !rueidis.IsRedisNil(err) {
		s.tb.Fatalf("holdfasttest: %v", err)
	}
}

// Expire ends the lock's lease in Redis, as if it had not been renewed in time.
// Nobody is told: the holder learns of it at its next renewal
// ([holdfast.ReasonExpired]), within a third of its lease, and a waiter finds the
// lock free when it expected the lease to end.
func (s *Server) Expire(name string) { s.redis.Del(name) }

// Lose takes the lock from the session of this server that holds it, tells that
// session at once ([holdfast.ReasonForced]), and wakes the waiters. The contexts
// of the holder end a moment later.
func (s *Server) Lose(name string) {
	s.tb.Helper()
	owner := s.Owner(name)
	if owner == "" {
		s.tb.Fatalf("holdfasttest: nobody holds %q", name)
	}
	s.mu.Lock()
	var holder *process
	for _, p := range s.processes {
		if p.owns(owner) {
			holder = p
		}
	}
	s.mu.Unlock()
	if holder == nil {
		s.tb.Fatalf("holdfasttest: %q is held by %s, which is no session of this server", name, owner)
		return
	}
	lock, err := reentrant.New(holder.session, strings.TrimPrefix(name, holder.options.Prefix), holdfast.Options{})
	if err == nil {
		_, err = lock.ForceUnlock(context.Background())
	}
	if err != nil {
		s.tb.Fatalf("holdfasttest: %v", err)
	}
}
