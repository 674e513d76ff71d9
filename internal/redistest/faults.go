package redistest

import (
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// KillClients makes the server close the connections of one type: normal,
// pubsub, replica or master. That of the administrator, which Do uses, stays.
func (s *Server) KillClients(tb TB, kind string) {
	tb.Helper()
	s.Do(tb, "CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
}

// PauseClients makes the server accept commands and execute none of them for
// the time d, after which it executes them all. Unlike a server after Pause it
// is alive for its replicas and the other nodes. Do has to wait as well, and so
// has CLIENT UNPAUSE.
func (s *Server) PauseClients(tb TB, d time.Duration) {
	tb.Helper()
	s.Do(tb, "CLIENT", "PAUSE", strconv.FormatInt(d.Milliseconds(), 10), "ALL")
}

// FillMemory brings the server into the state of one whose memory is full and
// which may not evict: it refuses commands that could need more, such as SET
// and scripts that write, and executes others, such as DEL. It does so until
// free is called, at the latest at the end of the test, or restarts.
//
// The limit is lowered instead of the memory filled. So no key of a filler is
// in the way, and the server stays full whatever is deleted.
func (s *Server) FillMemory(tb TB) (free func()) {
	tb.Helper()
	before := make([]string, 0, 4)
	for _, name := range []string{"maxmemory", "maxmemory-policy"} {
		msg, err := s.do("CONFIG", "GET", name)
		if err != nil {
			tb.Fatalf("redistest: CONFIG GET %s: %v", name, err)
		}
		pair, err := msg.AsStrSlice()
		if err != nil || len(pair) != 2 {
			tb.Fatalf("redistest: CONFIG GET %s: %q, %v", name, pair, err)
		}
		before = append(before, pair...)
	}
	s.Do(tb, "CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1")
	free = sync.OnceFunc(func() {
		// A server that was killed has forgotten the limit.
		_, err := s.TryDo(append([]string{"CONFIG", "SET"}, before...)...)
		if err != nil && s.answers() {
			tb.Fatalf("redistest: free the memory: %v", err)
		}
	})
	tb.Cleanup(free)
	return free
}

// User creates a user with these rules, such as "~lock:*" and "+@all", for the
// time of a test, and returns what makes a client log in as that user.
//
// The server forgets its users when it restarts.
func (s *Server) User(tb TB, name string, rules ...string) func(*rueidis.ClientOption) {
	tb.Helper()
	password := "password of " + name
	s.Do(tb, append([]string{"ACL", "SETUSER", name, "reset", "on", ">" + password}, rules...)...)
	tb.Cleanup(func() { _, _ = s.TryDo("ACL", "DELUSER", name) })
	return func(o *rueidis.ClientOption) { o.Username, o.Password = name, password }
}
