package explore

import (
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/scripts"
)

// Tick is the unit in which time passes. It is long, since on a real server time
// passes by itself too.
const Tick = 100 * time.Second

// A Kind is what the explorer has to know of a lock kind. M is its model: all
// that is true of one lock at one moment, a value without pointers.
type Kind[M comparable] interface {
	// Start is the model of the server at the beginning.
	Start() M

	// Step is what c is to do at tick now, and to answer.
	Step(m M, now int, c Command) (M, Answer)

	// Contents is all that a server may hold of which m is true, by name.
	Contents(m M, now int) Contents

	// Has reports whether o has the lock.
	Has(m M, now int, o Owner) bool

	// Share reports whether two may hold the lock at once that acquired it in
	// these modes.
	Share(a, b uint8) bool

	// Script is what c has the server run.
	Script(c Command) (s *scripts.Script, keys, args []string)

	// Read is what the reply to c means: an int64, string, error, or []any of them.
	Read(c Command, reply any) (Answer, error)

	// Check says what is wrong with a run, without knowing the model.
	Check(r *Run) error
}

// An Op is what a command is for.
type Op uint8

// The commands of every kind.
const (
	Acquire Op = iota + 1
	Count
	Renew
	Release
	Force
	Convert // the owner's hold becomes one of another mode
	Prune   // the owner is taken out, if its hold has ended; anybody may send it
)

// A Command is what a client sends.
type Command struct {
	Op    Op
	Mode  uint8 // a kind's own: shared or exclusive, fenced, with a receipt …
	Owner Owner
	Holds uint8 // Count: the target
	Ticks int8  // Release: how long the lock is to stay taken; else the lease
	Block uint8 // Acquire: how many tokens are wanted
}

// An Owner is a client's n-th root hold; n counts from 1.
type Owner struct{ Client, N uint8 }

// Session is the part of an owner's name that its client keeps.
func (o Owner) Session() string { return string(rune('A' + o.Client)) }

// String is the owner's name on the server.
func (o Owner) String() string { return fmt.Sprintf("%s:%d", o.Session(), o.N) }

// A Verdict says whose lock it is.
type Verdict uint8

// The verdicts.
const (
	Mine  Verdict = iota + 1 // done: the lock is, or was, the owner's
	Gone                     // nobody has it
	Other                    // somebody else has it
)

// An Answer is what a reply means.
type Answer struct {
	Verdict Verdict
	Left    time.Duration // a refused Acquire: how long the holder may keep the lock
	Token   uint64        // the first of Block tokens
	Block   uint8
}

// String is for people.
func (a Answer) String() string {
	s := [...]string{"?", "mine", "gone", "other"}[a.Verdict]
	if a.Left != 0 {
		s += fmt.Sprintf(", %v left", a.Left)
	}
	if a.Block != 0 {
		s += fmt.Sprintf(", token %d × %d", a.Token, a.Block)
	}
	return s
}

// Contents are all keys of a server, by name.
type Contents []Key

// A Key is one key: a string, a hash, a set, or a sorted set.
type Key struct {
	Name   string
	Type   string        // set; else it is a hash if it has fields
	Text   string        // of a string
	Fields []string      // of a hash "field=value", of a set "member"; sorted
	Scores []string      // of a sorted set "member=score"; sorted
	Until  time.Duration // when it expires, since the beginning; 0: never
}

// Key returns the key of that name, nil if there is none.
func (c Contents) Key(name string) *Key {
	for i := range c {
		if c[i].Name == name {
			return &c[i]
		}
	}
	return nil
}

// String is the same for equal contents only.
func (c Contents) String() string {
	var b strings.Builder
	for _, k := range c {
		if b.Len() > 0 {
			b.WriteString("  ")
		}
		fmt.Fprintf(&b, "%s=%s{%s}", k.Name, k.Text, strings.Join(append(k.Fields, k.Scores...), " "))
		switch {
		case k.Until == 0:
			b.WriteString(" for ever")
		case k.Until%Tick == 0:
			fmt.Fprintf(&b, " until %d", k.Until/Tick)
		default:
			fmt.Fprintf(&b, " until %v", k.Until)
		}
	}
	if b.Len() == 0 {
		return "nothing"
	}
	return b.String()
}

// A Run is one run of a script, and what the same command did right after it.
type Run struct {
	Command       Command
	Now           int
	Before, After Contents
	Answer        Answer
	Again         Answer
}

// A Server runs scripts.
type Server interface {
	// Run runs s once, on a server that holds what from says at that time, and
	// returns its reply and what the server holds then.
	Run(from Contents, now time.Duration, s *scripts.Script, keys, args []string) (reply any, to Contents, err error)

	// Wait lets time pass.
	Wait(from Contents, now, d time.Duration) (to Contents, err error)
}
