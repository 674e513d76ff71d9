// Package core is what a lock kind hands to the session, and what it needs to run
// its scripts: names, the client, the hub, and the meaning of errors.
package core

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/lease"
	"github.com/holdfast-go/holdfast/pubsub"
)

// A Kind is one lock kind: everything that tells it from the others.
type Kind interface {
	// Name is the kind's word in errors and events, and its package.
	Name() string
	// Uses says which options the kind uses beside those that all do.
	Uses() Uses
	// Renewer renews locks of this kind; a session makes one.
	Renewer(env *Env) lease.Renewer
	// Open returns the lock of that key. It does no I/O.
	Open(env *Env, key string, s *Settings) Lock
}

// Uses is a set of options, and of what else the session has to know of a kind.
type Uses uint8

const (
	// UsesExclusive: MinHold, Handoff, Fencing and TokenRetention.
	UsesExclusive Uses = 1 << iota
	// Shared: many hold it at once, and callers that wait together enter together.
	Shared
)

// Yielding is a Kind whose locks are not handed over between callers of one process
// while others wait there for the lock of that name of another kind.
type Yielding interface {
	YieldsTo() string
}

// A Lock is one lock of a kind.
type Lock interface {
	lease.Store
	// Info reads who holds it.
	Info(ctx context.Context) (Info, error)
	// Force removes it, whoever holds it.
	Force(ctx context.Context) (bool, error)
}

// A Part is a lock that has a side which holders of another side may take as well, as
// a part of what they hold.
type Part interface {
	Lock
	// Under returns the lock as holders of that owner see it.
	Under(owner string) Lock
}

// ErrOuterLost says that the lock which another was to be a part of is not held.
var ErrOuterLost = errors.New("the outer lock is not held")

// Info is who holds a lock.
type Info struct {
	Mode    string
	Holders []Holder
	Left    time.Duration // rest of the TTL; negative: no end
}

// A Holder is one owner of a lock.
type Holder struct {
	Owner string
	Holds int
}

// Env is what the locks of one session share.
type Env struct {
	Client   rueidis.Client
	Hub      *pubsub.Hub
	Session  string // the session's id
	Receipts bool

	RenewBatch int // locks per renewal script; 0: all that are renewed together

	// Background runs f on a goroutine that the session waits for at its end; ctx is
	// bounded as that of a command.
	Background func(f func(ctx context.Context))

	combiners sync.Map // *combiner by *scripts.Batch
}

// Tools are what a package of this module needs for calls that are no lock's.
type Tools struct {
	*Env
	Prefix  string        // of every name
	Timeout time.Duration // bounds each command
	Closed  chan struct{} // closed with the session
}

// Settings are the options of a handle in the form in which scripts want them.
type Settings struct {
	Lease          string // milliseconds
	Take           string // milliseconds: the TTL at the acquire
	Fencing        bool
	Retention      string // milliseconds, or -1
	Replicas       int
	ReplicaTimeout time.Duration
	Renewer        lease.Renewer
}

// A Gate stands before locks whose taking depends on something else that has to
// be so: it is passed once, and is open from then on.
type Gate struct {
	ask    func(ctx context.Context, env *Env) error
	passed atomic.Bool
}

// NewGate returns a gate that opens when ask returns nil. Several may ask at once.
func NewGate(ask func(ctx context.Context, env *Env) error) *Gate { return &Gate{ask: ask} }

// Pass returns nil if the gate is open, or opens now. The error is a
// [fault.Failure] which says that the lock was not asked for. A nil gate is open.
func (g *Gate) Pass(ctx context.Context, env *Env) error {
	if g == nil || g.passed.Load() {
		return nil
	}
	err := g.ask(ctx, env)
	if err == nil {
		g.passed.Store(true)
		return nil
	}
	if fault.ClassOf(err) == fault.Unknown {
		// Whatever became of the question, the lock was not touched.
		return &fault.Failure{Class: fault.NotExecuted, Err: err}
	}
	return err
}
