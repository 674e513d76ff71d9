package history

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Never is the return of an operation that may take effect at any later time.
const Never = math.MaxInt64

// A Verb is what was asked for. Each model knows its own.
type Verb string

// The verbs of exclusive locks.
const (
	Lock    Verb = "Lock"
	TryLock Verb = "TryLock"
	Nested  Verb = "Nested" // a Lock or TryLock that re-entered
	Unlock  Verb = "Unlock"
	Force   Verb = "Force"
	Loss    Verb = "Loss" // nobody asks for it
)

// An Outcome is what the caller was told.
type Outcome string

// The outcomes.
const (
	Done    Outcome = "done"
	Refused Outcome = "refused" // it is taken
	Lost    Outcome = "lost"    // it was held and is lost
	Unknown Outcome = "unknown" // it may have been done, or be done later
	Failed  Outcome = "failed"  // any error that cannot be
)

// An Op is one operation on one lock. Times are those of [Now].
type Op struct {
	Name    string // of the lock: names are checked one by one
	Session string // callers of one session queue for a lock together
	Client  int    // who asked: one operation after another
	Verb    Verb
	Call    int64
	Return  int64
	Outcome Outcome
	Err     string `json:",omitempty"`

	Hold    string `json:",omitempty"` // the root hold granted or acted on; unique
	Owner   string `json:",omitempty"` // its field in Redis, which holds may share one after another
	Token   uint64 `json:",omitempty"`
	Count   int    `json:",omitempty"` // holds of the owner after it
	Handoff bool   `json:",omitempty"` // granted without asking Redis
	Side    string `json:",omitempty"` // of a lock that has sides
	Under   string `json:",omitempty"` // the hold of the other side that it was granted as a part of
	Next    string `json:",omitempty"` // the hold that it became

	ValidAt int64  `json:",omitempty"` // when the lease was last seen valid
	Until   int64  `json:",omitempty"` // the end of the lease, as last seen
	LostAt  int64  `json:",omitempty"` // when its loss was noticed
	Ghost   bool   `json:",omitempty"` // its attempts may have the lock for a while, or get it later
	Excuse  string `json:",omitempty"` // why a refusal needs no hold that is in the history
}

// String shows the operation in one line, with times in microseconds.
func (o *Op) String() string {
	var b strings.Builder
	end := "…"
	if o.Return != Never {
		end = micros(o.Return)
	}
	fmt.Fprintf(&b, "[%s %s] #%d %s %s %s", micros(o.Call), end, o.Client, o.Verb, o.Name, o.Outcome)
	if o.Hold != "" {
		fmt.Fprintf(&b, " hold=%s token=%d count=%d", o.Hold, o.Token, o.Count)
	}
	if o.Handoff {
		b.WriteString(" handoff")
	}
	for _, word := range []string{o.Side, o.Under, o.Next} {
		if word != "" {
			b.WriteString(" " + word)
		}
	}
	for _, at := range []struct {
		name string
		ns   int64
	}{{"valid", o.ValidAt}, {"until", o.Until}, {"lost", o.LostAt}} {
		if at.ns != 0 {
			fmt.Fprintf(&b, " %s=%s", at.name, micros(at.ns))
		}
	}
	if o.Excuse != "" {
		fmt.Fprintf(&b, " excused: %s", o.Excuse)
	}
	if o.Err != "" {
		fmt.Fprintf(&b, " (%s)", o.Err)
	}
	return b.String()
}

func micros(ns int64) string {
	return fmt.Sprintf("%d.%06d", ns/int64(time.Second), ns%int64(time.Second)/1000)
}
