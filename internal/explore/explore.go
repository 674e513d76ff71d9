package explore

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// A Scenario is what schedules are made of.
type Scenario struct {
	Clients  [][]Step // their programs
	Faults   int      // at most so many answers or commands are lost, late or slow
	Ticks    int      // at most so much time passes
	Receipts bool     // releases know what earlier copies did
	Sweep    Command  // the release of condemned owners
	Sided    bool     // that is of the mode which they acquired, or converted to
}

// A Report says how much was looked at.
type Report struct {
	Schedules uint64 // complete ones, each different from all others
	States    int
	Steps     int // from a state to the next
	Runs      int // of a script on the server
	Longest   int // the most steps in a schedule
}

// Add adds another report to r.
func (r *Report) Add(o Report) {
	r.Schedules = add(r.Schedules, o.Schedules)
	r.States += o.States
	r.Steps += o.Steps
	r.Runs += o.Runs
	r.Longest = max(r.Longest, o.Longest)
}

// A Violation is a schedule that breaks a property.
type Violation struct {
	Property error
	Schedule []string // what happened, step by step
}

// Error has the whole schedule.
func (v *Violation) Error() string {
	return fmt.Sprintf("%v\nafter\n%s", v.Property, strings.Join(v.Schedule, "\n"))
}

// Explore goes through all schedules of a scenario. The error is a [*Violation],
// unless the server failed.
func Explore[M comparable](k Kind[M], on Server, sc Scenario) (Report, error) {
	x := newExplorer(k, on, sc)
	x.known = map[situation[M]]outcome[M]{}

	type node struct {
		state state[M]
		paths uint64
		trail int
	}
	type hop struct { // how a state was reached first
		from int
		move move
	}
	trails := []hop{{from: -1}}
	level := []node{{state: x.start(), paths: 1}}
	for ; len(level) > 0; x.report.Longest++ {
		x.report.States += len(level)
		next := make([]node, 0, 2*len(level))
		found := make(map[state[M]]int, 2*len(level))
		for i := range level {
			n := &level[i]
			moves := x.moves(&n.state)
			for _, m := range moves {
				s := n.state
				if err := x.do(&s, m); err != nil {
					path := []move{m}
					for at := n.trail; trails[at].from >= 0; at = trails[at].from {
						path = append(path, trails[at].move)
					}
					slices.Reverse(path)
					return x.report, x.retell(path, err)
				}
				x.report.Steps++
				i, ok := found[s]
				if !ok {
					i = len(next)
					found[s] = i
					next = append(next, node{state: s, trail: len(trails)})
					trails = append(trails, hop{n.trail, m})
				}
				next[i].paths = add(next[i].paths, n.paths)
			}
			if len(moves) == 0 {
				x.report.Schedules = add(x.report.Schedules, n.paths)
			}
		}
		level = next
	}
	return x.report, nil
}

// Walk goes through n schedules taken at random.
func Walk[M comparable](k Kind[M], on Server, sc Scenario, n int, random *rand.Rand) (Report, error) {
	x := newExplorer(k, on, sc)
	seen := map[string]bool{}
	for range n {
		s := x.start()
		var path []move
		for {
			moves := x.moves(&s)
			if len(moves) == 0 {
				break
			}
			m := moves[random.IntN(len(moves))]
			path = append(path, m)
			if err := x.do(&s, m); err != nil {
				return x.report, x.retell(path, err)
			}
			x.report.Steps++
		}
		if name := fmt.Sprint(path); !seen[name] {
			seen[name] = true
			x.report.Schedules++
		}
		x.report.Longest = max(x.report.Longest, len(path))
	}
	return x.report, nil
}

// add adds without overflowing.
func add(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	return sum | -carry
}

// A state is all that the rest of a schedule depends on.
type state[M comparable] struct {
	model   M // what the server holds too: the two have been compared
	now     int8
	faults  int8 // that may still happen
	ticks   int8 // that may still pass
	ended   bool
	top     uint64 // the highest token given out
	clients [maxClients]client
	late    [maxFaults]Command // that will arrive, in an order of no meaning
	dead    [maxFaults]deadOwner
}

// fly adds a late copy.
func (s *state[M]) fly(c Command) { s.fill(Command{}, c) }

// fill puts to in the place of from.
func (s *state[M]) fill(from, to Command) {
	i := slices.Index(s.late[:], from)
	if i < 0 {
		panic("explore: too many late copies")
	}
	s.late[i] = to
	slices.SortFunc(s.late[:], func(a, b Command) int {
		return cmp.Or(cmp.Compare(b.Op, a.Op), cmp.Compare(a.Mode, b.Mode), cmp.Compare(a.Owner.Client, b.Owner.Client),
			cmp.Compare(a.Owner.N, b.Owner.N), cmp.Compare(a.Holds, b.Holds), cmp.Compare(a.Ticks, b.Ticks), cmp.Compare(a.Block, b.Block))
	})
}

// A move is one step of a schedule.
type move struct {
	what what
	who  uint8 // which client, late copy, or condemned owner
}

type what uint8

const (
	answered what = iota // a client sends its command; it is executed, and the answer heard
	unheard              // … it is executed, and the answer lost
	unsent               // … it never arrives
	belated              // … it arrives when the client no longer waits
	slow                 // … it arrives, and is answered, later
	arrive               // a slow command is executed
	heard                // and its answer arrives
	giveUp               // a client does not send its command again
	lateCopy             // a late copy is executed
	sweep                // a condemned owner is released
	tick                 // time passes
	end                  // all is quiet: the last sweep
)

// moves are the steps that may follow.
func (x *explorer[M]) moves(s *state[M]) (moves []move) {
	if s.ended {
		return nil
	}
	for i := range s.clients {
		c, who := &s.clients[i], uint8(i)
		switch {
		case c.over:
		case c.pending.executed:
			moves = append(moves, move{heard, who})
		case c.pending.command.Op != 0:
			moves = append(moves, move{arrive, who})
		default:
			moves = append(moves, move{answered, who})
			if s.faults > 0 {
				moves = append(moves, move{unheard, who}, move{unsent, who}, move{belated, who}, move{slow, who})
			}
			if x.mayGiveUp(c) {
				moves = append(moves, move{giveUp, who})
			}
		}
	}
	for i, c := range s.late {
		if c.Op != 0 && (i == 0 || c != s.late[i-1]) {
			moves = append(moves, move{lateCopy, uint8(i)})
		}
	}
	if len(moves) == 0 {
		return []move{{what: end}}
	}
	for i, d := range s.dead {
		if d.release.Op != 0 && !d.swept {
			moves = append(moves, move{sweep, uint8(i)})
		}
	}
	if s.ticks > 0 {
		moves = append(moves, move{what: tick})
	}
	return moves
}

// An explorer explores one scenario.
type explorer[M comparable] struct {
	Scenario
	kind   Kind[M]
	server Server
	known  map[situation[M]]outcome[M] // nil: every command is run
	report Report
	tell   func(format string, args ...any) // nil: nobody is told what happens
}

// A situation is all that a run of a script depends on; without a command it is a
// tick.
type situation[M comparable] struct {
	model   M
	now     int8
	command Command
}

// An outcome is what became of it.
type outcome[M comparable] struct {
	model  M
	answer Answer
	err    error
}

func newExplorer[M comparable](k Kind[M], on Server, sc Scenario) *explorer[M] {
	if len(sc.Clients) > maxClients || sc.Faults > maxFaults {
		panic("explore: the scenario is too large")
	}
	return &explorer[M]{Scenario: sc, kind: k, server: on}
}

func (x *explorer[M]) start() state[M] {
	s := state[M]{model: x.kind.Start(), faults: int8(x.Faults), ticks: int8(x.Ticks)}
	for i := range s.clients {
		s.clients[i] = client{owner: Owner{Client: uint8(i)}, over: i >= len(x.Clients)}
	}
	return s
}

// do makes a move.
func (x *explorer[M]) do(s *state[M], m move) error {
	if m.what <= slow {
		return x.send(s, &s.clients[m.who], m.what)
	}
	switch m.what {
	case arrive:
		p := &s.clients[m.who].pending
		x.note("%s's slow command arrives:", p.command.Owner.Session())
		a, err := x.execute(s, p.command)
		p.executed, p.verdict = true, a.Verdict
		return cmp.Or(err, x.beliefs(s))
	case heard:
		c := &s.clients[m.who]
		p := c.pending
		x.note("%s hears the answer", c.owner.Session())
		x.hear(s, c, p.command, p.sent, p.verdict)
	case giveUp:
		c := &s.clients[m.who]
		x.note("%s gives up", c.owner.Session())
		x.giveUp(s, c)
	case lateCopy:
		c := s.late[m.who]
		s.fill(c, Command{})
		x.note("a late copy arrives:")
		_, err := x.execute(s, c)
		return cmp.Or(err, x.beliefs(s))
	case sweep:
		d := &s.dead[m.who]
		d.swept = true
		x.note("%v is swept:", d.release.Owner)
		_, err := x.execute(s, d.release)
		return cmp.Or(err, x.beliefs(s))
	case tick:
		x.note("a tick passes: it is %d", s.now+1)
		if err := x.wait(s); err != nil {
			return err
		}
		s.ticks--
		s.now++
		x.passed(s)
	default:
		return x.finish(s)
	}
	return x.beliefs(s)
}

// send has c send its next command.
func (x *explorer[M]) send(s *state[M], c *client, how what) error {
	cmd := x.command(c)
	if how != answered {
		s.faults--
	}
	x.note("%s sends a command, %s:", c.owner.Session(), [...]string{
		"and hears the answer", "whose answer is lost", "which is lost", "which is late", "which is slow",
	}[how])
	switch how {
	case unsent:
		x.noteCommand(cmd)
		x.unknown(c, cmd)
	case belated:
		x.noteCommand(cmd)
		s.fly(cmd)
		x.unknown(c, cmd)
	case slow:
		x.noteCommand(cmd)
		c.pending = pending{command: cmd, sent: s.now}
	default:
		a, err := x.execute(s, cmd)
		if err != nil {
			return err
		}
		if how == answered {
			x.hear(s, c, cmd, s.now, a.Verdict)
		} else {
			x.unknown(c, cmd)
		}
	}
	return x.beliefs(s)
}

// execute has the server run a command.
func (x *explorer[M]) execute(s *state[M], c Command) (Answer, error) {
	at := situation[M]{s.model, s.now, c}
	o, ok := x.known[at]
	if !ok {
		o = x.run(at)
		if x.known != nil {
			x.known[at] = o
		}
	}
	x.noteCommand(c)
	if o.err != nil {
		return o.answer, o.err
	}
	if x.tell != nil {
		x.tell("  %v; then there is %v", o.answer, x.kind.Contents(o.model, int(s.now)))
	}
	s.model = o.model
	if o.answer.Token > 0 {
		last := o.answer.Token + uint64(o.answer.Block) - 1
		had := x.kind.Has(at.model, int(s.now), c.Owner)
		if last < s.top || !had && o.answer.Token <= s.top {
			return o.answer, fmt.Errorf("tokens: %v gets %d after %d", c.Owner, o.answer.Token, s.top)
		}
		s.top = last
	}
	if c.Op == Force && o.answer.Verdict == Mine {
		for i := range s.clients {
			s.clients[i].forced = s.clients[i].owner.N > 0
		}
	}
	return o.answer, nil
}

// run runs a command, and the same once more, and compares with the model.
func (x *explorer[M]) run(at situation[M]) (o outcome[M]) {
	now, c := int(at.now), at.command
	fail := func(format string, args ...any) outcome[M] {
		o.err = fmt.Errorf(format, args...)
		return o
	}
	r := Run{Command: c, Now: now, Before: x.kind.Contents(at.model, now)}
	script, keys, args := x.kind.Script(c)
	once := func(from Contents) (a Answer, to Contents, err error) {
		x.report.Runs++
		reply, to, err := x.server.Run(from, time.Duration(now)*Tick, script, keys, args)
		if err == nil {
			a, err = x.kind.Read(c, reply)
		}
		return a, to, err
	}
	var want Answer
	o.model, want = x.kind.Step(at.model, now, c)
	var err error
	if r.Answer, r.After, err = once(r.Before); err != nil {
		return fail("reply: %w", err)
	}
	o.answer = r.Answer
	again, twice, err := once(r.After)
	if err != nil {
		return fail("reply to a repeat: %w", err)
	}
	r.Again = again
	if err := x.kind.Check(&r); err != nil {
		return fail("%w\nthere was   %v\nand then    %v", err, r.Before, r.After)
	}
	if twice.String() != r.After.String() {
		return fail("twice: a repeat changed something\nafter one   %v\nafter two   %v", r.After, twice)
	}
	if r.Answer != want {
		return fail("answer: it is %v, and should be %v", r.Answer, want)
	}
	if should := x.kind.Contents(o.model, now); r.After.String() != should.String() {
		return fail("contents: they are %v\nand should be       %v", r.After, should)
	}
	return o
}

// wait lets a tick pass.
func (x *explorer[M]) wait(s *state[M]) error {
	at := situation[M]{model: s.model, now: s.now}
	o, ok := x.known[at]
	if !ok {
		now := int(at.now)
		should := x.kind.Contents(at.model, now+1)
		is, err := x.server.Wait(x.kind.Contents(at.model, now), time.Duration(now)*Tick, Tick)
		if o.err = err; err == nil && is.String() != should.String() {
			o.err = fmt.Errorf("contents: with time they become %v\nand should become  %v", is, should)
		}
		if x.known != nil {
			x.known[at] = o
		}
	}
	return o.err
}

// beliefs checks that whoever believes to hold the lock has it, and shares it
// only if it may.
func (x *explorer[M]) beliefs(s *state[M]) error {
	for i := range s.clients {
		c := &s.clients[i]
		if !c.holding || c.forced {
			continue
		}
		for j := range i {
			if d := &s.clients[j]; d.holding && !d.forced && !x.kind.Share(c.mode, d.mode) {
				return fmt.Errorf("exclusion: %v and %v both believe to hold the lock", d.owner, c.owner)
			}
		}
		if !x.kind.Has(s.model, int(s.now), c.owner) {
			return fmt.Errorf("exclusion: %v believes to hold the lock, and does not have it", c.owner)
		}
	}
	return nil
}

// finish sweeps every condemned owner a last time, and looks at what is left.
func (x *explorer[M]) finish(s *state[M]) error {
	s.ended = true
	x.note("all is quiet")
	for _, d := range s.dead {
		if d.release.Op != 0 {
			x.note("%v is swept a last time:", d.release.Owner)
			if _, err := x.execute(s, d.release); err != nil {
				return err
			}
		}
	}
	for i := range s.clients {
		c := &s.clients[i]
		for o := (Owner{Client: uint8(i), N: 1}); o.N <= c.owner.N; o.N++ {
			if x.kind.Has(s.model, int(s.now), o) && (!c.holding && !c.expired || o != c.owner) {
				return fmt.Errorf("left over: %v has the lock, and nobody knows", o)
			}
		}
	}
	return x.beliefs(s)
}

// retell goes through a schedule again and writes down what happens.
func (x *explorer[M]) retell(path []move, why error) error {
	v := &Violation{Property: why}
	margin := ""
	x.tell = func(format string, args ...any) {
		v.Schedule = append(v.Schedule, margin+fmt.Sprintf(format, args...))
		margin = "    "
	}
	s := x.start()
	for i, m := range path {
		margin = fmt.Sprintf("%2d. ", i+1)
		if err := x.do(&s, m); err != nil && i < len(path)-1 {
			return errors.Join(fmt.Errorf("explore: a schedule that went well fails now: %w", err), v)
		}
	}
	return v
}

func (x *explorer[M]) note(format string, args ...any) {
	if x.tell != nil {
		x.tell(format, args...)
	}
}

func (x *explorer[M]) noteCommand(c Command) {
	if x.tell != nil {
		script, _, args := x.kind.Script(c)
		x.tell("  %s %s", script.Name(), strings.Join(args, " "))
	}
}
