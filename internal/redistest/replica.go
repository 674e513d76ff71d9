package redistest

import (
	"fmt"
	"strconv"
	"strings"
)

// Replica starts a replica of the server for the time of a test and returns
// when it is in step. Without Options.Binary it runs the binary of the server.
//
// A replica that is restarted replicates again what it did replicate.
func (s *Server) Replica(tb TB, o ...Options) *Server {
	tb.Helper()
	var opts Options
	if len(o) > 0 {
		opts = o[0]
	}
	if opts.Binary == "" {
		opts.Binary = s.Binary
	}
	r := Run(tb, opts)
	r.Follow(tb, s)
	return r
}

// Promote makes a replica a primary of its own, with the data it has got.
func (s *Server) Promote(tb TB) {
	tb.Helper()
	s.Do(tb, "REPLICAOF", "NO", "ONE")
	s.setPrimary(nil)
}

// Follow makes the server a replica of another one, whose data replaces its
// own, and returns when it is in step.
func (s *Server) Follow(tb TB, other *Server) {
	tb.Helper()
	s.Do(tb, "REPLICAOF", "127.0.0.1", strconv.Itoa(other.port))
	s.setPrimary(other)
	other.WaitInStep(tb, s)
}

// WaitInStep waits until the replicas have everything that was written to the
// server before the call.
func (s *Server) WaitInStep(tb TB, replicas ...*Server) {
	tb.Helper()
	written := s.replication(tb).offset()
	await(tb, "the replicas are in step", func() error {
		for _, r := range replicas {
			if err := r.inStep(s, written); err != nil {
				return fmt.Errorf("%s: %w", r.Addr(), err)
			}
		}
		return nil
	})
}

func (s *Server) primary() *Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.source
}

func (s *Server) setPrimary(p *Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.source = p
}

// replication is INFO replication.
type replication map[string]string

func (r replication) offset() int64 {
	// The offset of a replica is called otherwise than that of its primary.
	n, _ := strconv.ParseInt(r["master_repl_offset"], 10, 64)
	return n
}

func (s *Server) replication(tb TB) replication {
	tb.Helper()
	r, err := s.tryReplication()
	if err != nil {
		tb.Fatalf("redistest: INFO replication: %v", err)
	}
	return r
}

func (s *Server) tryReplication() (replication, error) {
	text, err := s.TryDo("INFO", "replication")
	if err != nil {
		return nil, err
	}
	r := replication{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			r[name] = value
		}
	}
	return r, nil
}

// inStep returns what keeps the server from being a replica of primary that has
// everything up to the offset.
func (s *Server) inStep(primary *Server, offset int64) error {
	r, err := s.tryReplication()
	if err != nil {
		return err
	}
	p, err := primary.tryReplication()
	if err != nil {
		return err
	}
	switch {
	case r["role"] != "slave" || r["master_port"] != strconv.Itoa(primary.port):
		return fmt.Errorf("it does not replicate %s, role %s", primary.Addr(), r["role"])
	case r["master_link_status"] != "up" || r["master_sync_in_progress"] != "0":
		return fmt.Errorf("its link is %s", r["master_link_status"])
	case r["master_replid"] != p["master_replid"]:
		// Offsets of different histories do not compare.
		return fmt.Errorf("its history is %s and not %s", r["master_replid"], p["master_replid"])
	case r.offset() < offset:
		return fmt.Errorf("it is at %d of %d", r.offset(), offset)
	}
	return nil
}
