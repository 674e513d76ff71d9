package holdfast

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/internal/lease"
	"github.com/holdfast-go/holdfast/pubsub"
)

// A Session is what the locks of one process on one server share: the client,
// the watchdog, the queues of local waiters, the subscriptions. Make one for each
// client, at start, and close it before the client. It may be used from many
// goroutines.
type Session struct {
	options SessionOptions
	id      string
	clock   *lease.Clock
	hub     *pubsub.Hub
	env     *core.Env
	keeper  *lease.Keeper
	events  events
	closed  atomic.Bool
	ended   chan struct{} // closed when Close begins

	mu       sync.Mutex // guards renewers
	renewers map[string]lease.Renewer
}

// New returns a session on client. It asks the server nothing and starts no
// goroutine. The client stays the caller's: its settings (retries, time-outs,
// connections) are left as they are.
//
// Errors: [ErrOption].
func New(client rueidis.Client, o SessionOptions) (*Session, error) {
	if client == nil || reflect.ValueOf(client).Kind() == reflect.Pointer && reflect.ValueOf(client).IsNil() {
		return nil, fmt.Errorf("holdfast: %w: the client is nil", ErrOption)
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("holdfast: %w", err)
	}
	s := &Session{
		options:  o,
		id:       uuid.NewString(),
		clock:    lease.NewClock(),
		renewers: map[string]lease.Renewer{},
		ended:    make(chan struct{}),
	}
	s.events.session = s
	s.hub = pubsub.New(client, pubsub.Options{Family: pubsub.Family(o.Family)})
	s.env = &core.Env{Client: client, Hub: s.hub, Session: s.id, Receipts: o.Receipts, RenewBatch: o.RenewBatch}
	s.keeper = lease.NewKeeper(lease.Config{
		Clock:      s.clock,
		Timeout:    o.Timeout,
		Batch:      o.RenewBatch,
		StallAfter: o.StallAfter,
		OwnerName:  o.Label + "/" + s.id + ":",
		Events: lease.Events{
			Cause:   cause,
			Retried: s.retried,
			Renewed: s.events.renewed,
			Lost:    s.events.lost,
			Stalled: s.events.stalled,
		},
	})
	s.env.Background = s.keeper.Background
	return s, nil
}

// Close shuts the session down as http.Server.Shutdown does: new and waiting
// calls fail with [ErrClosed], nested ones under a live hold excepted; holders go
// on, renewed, until they unlock or ctx ends. Then the remaining contexts end
// with [ReasonClosed], and only after that are their locks released, within the
// session's Timeout even if ctx is over: a lock that is released under running
// work would have two owners.
//
// It returns ctx's error if holds remained. A second call returns nil. The
// client stays open.
func (s *Session) Close(ctx context.Context) error {
	if s.closed.Swap(true) {
		return nil
	}
	close(s.ended)
	err := s.keeper.Close(ctx)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.Timeout)
	defer cancel()
	s.hub.Close(last)
	s.events.close(last)
	if err != nil {
		return fmt.Errorf("holdfast: close: holds remained: %w", err)
	}
	return nil
}

// Stats are momentary counts of a session.
type Stats struct {
	// Held is the number of locks that this session holds.
	Held int
	// Waiting is the number of calls that wait for a lock.
	Waiting int
	// Subscriptions is the number of channels subscribed to.
	Subscriptions int
	// Condemned is the number of attempts of unknown outcome that were given up
	// less than two minutes ago, whose locks are still looked for and removed.
	Condemned int
	// Dropped is the number of events that a slow observer has missed.
	Dropped uint64
}

// Stats returns momentary counts; it asks nobody.
func (s *Session) Stats() Stats {
	k := s.keeper.Stats()
	return Stats{
		Held: k.Held, Waiting: k.Waiting, Condemned: k.Condemned,
		Subscriptions: s.hub.Len(), Dropped: s.events.dropped(),
	}
}

// settings are o in the form in which scripts want it.
func (s *Session) settings(k core.Kind, o Options) *core.Settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	renewer := s.renewers[k.Name()]
	if renewer == nil {
		renewer = k.Renewer(s.env)
		s.renewers[k.Name()] = renewer
	}
	retention := "-1"
	if o.TokenRetention > 0 {
		retention = core.Millis(o.TokenRetention)
	}
	return &core.Settings{
		Lease: core.Millis(o.Lease), Take: core.Millis(max(o.Lease, o.MinHold)),
		Fencing: o.Fencing, Retention: retention,
		Replicas: o.Replicas, ReplicaTimeout: o.ReplicaTimeout,
		Renewer: renewer,
	}
}

// cause is what contexts and calls are told of a loss.
func cause(h *lease.Hold, l *lease.Loss) error { return lostError(h, l) }

func lostError(h *lease.Hold, l *lease.Loss) *LostError {
	lock := h.Request().Tag.(*Handle)
	return &LostError{Kind: lock.kind.Name(), Name: lock.key, Reason: Reason(l.Reason), At: l.At, Err: l.Err}
}

// acquired, refused, retried and released tell the observer on the caller's
// goroutine.

func (s *Session) acquired(ctx context.Context, h *Handle, r lease.Result, holds int) {
	if f := s.options.Observer.Acquired; f != nil {
		defer shield()
		f(ctx, Acquired{
			Subject: h.subject(), Waited: r.Waited, Attempts: r.Attempts, Handoff: r.Handoff,
			Holds: holds, Token: r.Hold.Token(),
		})
	}
}

func (s *Session) refused(ctx context.Context, h *Handle, r lease.Result, err error) {
	if f := s.options.Observer.Refused; f != nil {
		defer shield()
		f(ctx, Refused{Subject: h.subject(), Waited: r.Waited, Attempts: r.Attempts, Err: err})
	}
}

func (s *Session) retried(ctx context.Context, r *lease.Request, attempts int, err error) {
	if f := s.options.Observer.Retried; f != nil {
		defer shield()
		f(ctx, Retried{Subject: r.Tag.(*Handle).subject(), Attempts: attempts, Err: err})
	}
}

func (s *Session) released(ctx context.Context, h *Handle, hold *lease.Hold, left int, err error) {
	if f := s.options.Observer.Released; f != nil {
		defer shield()
		f(ctx, Released{Subject: h.subject(), Held: hold.Age(), Holds: left, Err: err})
	}
}

// shield keeps a panic of the user's observer from the lock: it is not the
// caller's fault and must not cost the caller its lease.
func shield() { _ = recover() }

// maxEvents bounds the queue to a slow observer.
const maxEvents = 1024

// events brings what the session finds out by itself to the observer and the
// log, on one goroutine that exists while there is something to bring.
type events struct {
	session *Session

	mu      sync.Mutex // guards what follows
	queue   []func()
	running bool
	lostN   uint64
	closed  bool
	done    chan struct{} // closed when running ends, if somebody waits for it
}

func (e *events) push(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) >= maxEvents || e.closed {
		e.lostN++
		return
	}
	e.queue = append(e.queue, f)
	if !e.running {
		e.running = true
		go e.run()
	}
}

func (e *events) run() {
	for {
		e.mu.Lock()
		if len(e.queue) == 0 {
			e.running, e.queue = false, nil
			if e.done != nil {
				close(e.done)
				e.done = nil
			}
			e.mu.Unlock()
			return
		}
		f := e.queue[0]
		e.queue = e.queue[1:]
		e.mu.Unlock()
		func() {
			defer shield()
			f()
		}()
	}
}

func (e *events) dropped() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lostN
}

// close waits until what was queued is brought; when ctx ends it drops the rest,
// and only an observer that is busy at that moment outlives it.
func (e *events) close(ctx context.Context) {
	e.mu.Lock()
	e.closed = true
	if !e.running {
		e.mu.Unlock()
		return
	}
	if e.done == nil {
		e.done = make(chan struct{})
	}
	done := e.done
	e.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
		e.mu.Lock()
		e.lostN += uint64(len(e.queue))
		e.queue = nil
		e.mu.Unlock()
	}
}

func (e *events) renewed(locks, renewed int, took time.Duration, err error, renewer lease.Renewer) {
	f := e.session.options.Observer.Renewed
	if f == nil {
		return
	}
	e.push(func() {
		f(Renewed{Kind: e.session.kindOf(renewer), Locks: locks, Renewed: renewed, Took: took, Err: err})
	})
}

func (s *Session) kindOf(r lease.Renewer) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, renewer := range s.renewers {
		if renewer == r {
			return name
		}
	}
	return ""
}

func (e *events) lost(h *lease.Hold, l *lease.Loss) {
	o := &e.session.options
	lock := h.Request().Tag.(*Handle)
	lost := Lost{Subject: lock.subject(), Held: h.Age(), Err: lostError(h, l)}
	e.push(func() {
		attrs := []any{
			"kind", lost.Kind, "class", lost.Class, "name", lost.Name,
			"reason", string(lost.Err.Reason), "held", lost.Held, "owner", h.Owner(),
		}
		if l.Err != nil {
			attrs = append(attrs, "error", l.Err)
		}
		o.Logger.Warn("holdfast: lock lost", attrs...)
		if o.Observer.Lost != nil {
			o.Observer.Lost(lost)
		}
	})
}

func (e *events) stalled(r *lease.Request, st lease.Stall) {
	o := &e.session.options
	stall := Stalled{
		Subject: r.Tag.(*Handle).subject(), Waiting: st.Waiting, For: st.For, ContextEnded: st.Ended, Owner: st.Owner,
	}
	e.push(func() {
		o.Logger.Warn("holdfast: lock stalled", "kind", stall.Kind, "class", stall.Class, "name", stall.Name,
			"for", stall.For, "waiting", stall.Waiting, "context_ended", stall.ContextEnded, "owner", stall.Owner)
		if o.Observer.Stalled != nil {
			o.Observer.Stalled(stall)
		}
	})
}
