package explore

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/stockmodel"
	"github.com/holdfast-go/holdfast/scripts"
)

// A StockOp is what a command to a stock is for.
type StockOp uint8

// The commands of a stock.
const (
	Reserve StockOp = iota + 1
	Tentative
	Settle
	GiveBack
	Confirm
	Cancel
	Extend
	Refund
	Deliver
	Sweep

	// Between two buckets.
	Give    // units to the other bucket
	Take    // a transfer in
	Arrived // note that it was taken in
	Look    // into a bucket

	// What programs over two buckets have, which is several commands.
	Buy    // an order, wherever the units are
	Move   // units to the other bucket
	Finish // whatever is on its way
)

// A StockCommand is one command to a stock, the same however often it is sent.
type StockCommand struct {
	Op      StockOp
	Order   string
	Buyer   string
	Request string // Refund and Deliver
	Units   int64
	Ticks   int // Reserve, Tentative, Settle, Extend: for how long

	// Where there are two buckets.
	Bucket      int   // which one
	Number      int64 // of a transfer from the other one, or to it
	Sent        int64 // its units, where they are to be taken in
	Half, Large bool  // Give
}

// String is for people.
func (c StockCommand) String() string {
	name := [...]string{"?", "reserve", "reserve tentatively", "settle", "give back", "confirm", "cancel", "extend", "refund", "deliver", "sweep", "give", "take", "arrived", "look", "buy", "move", "finish"}[c.Op]
	text := fmt.Sprintf("%s %s%s%s %d for %d ticks", name, c.Order, c.Request, c.Buyer, c.Units, c.Ticks)
	if c.Bucket > 0 || c.Number > 0 || c.Op >= Give {
		text += fmt.Sprintf(" in bucket %d", c.Bucket)
	}
	if c.Number > 0 {
		text += fmt.Sprintf(", %d units in transfer %d", c.Sent, c.Number)
	}
	if c.Half || c.Large {
		text += fmt.Sprintf(", half=%v large=%v", c.Half, c.Large)
	}
	return text
}

// A StockScenario is what schedules over one bucket of a stock are made of.
type StockScenario struct {
	Units, Limit int64
	Clients      [][]StockCommand // their programs
	Faults       int              // at most so many answers or commands are lost or late
	Ticks        int              // at most so much time passes
	Retention    int              // ticks for which orders are remembered after their end
	// Forgets: a command may be so late that what it did is forgotten. It is a new
	// one then, and what callers were told may change; units still sum up.
	Forgets bool
	Instead map[*scripts.Script]*scripts.Script // scripts to run in the place of others
}

// stockKeys are the keys of a bucket, in the order of the scripts.
var stockKeys = []string{"units", "orders", "ends", "forget", "expired", "buyers"}

// A stockState is all that the rest of a schedule depends on.
type stockState struct {
	contents Contents
	text     string // of contents
	model    *stockmodel.Stock
	now      int
	faults   int
	ticks    int
	ended    bool
	clients  []stockClient
	late     []StockCommand
	told     map[string]bool // of an order: it is sold, or that it will never be
}

type stockClient struct {
	at    int
	again bool // a copy was sent of which nothing was heard
}

func (s *stockState) clone() *stockState {
	c := *s
	c.model, c.clients, c.late, c.told = s.model.Clone(), slices.Clone(s.clients), slices.Clone(s.late), maps.Clone(s.told)
	return &c
}

func (s *stockState) name() string {
	late := make([]string, len(s.late))
	for i, c := range s.late {
		late[i] = fmt.Sprintf("%+v", c)
	}
	slices.Sort(late)
	return fmt.Sprint(s.text, s.model, s.now, s.faults, s.ticks, s.ended, s.clients, late, s.told)
}

// Stock goes through all schedules of a scenario, as [Explore] does for
// locks. What the scripts answer is compared with package stockmodel, and what the
// server holds with its sums; what callers were told has to stay true; and when
// all is quiet and all time is over, whatever is not sold is on sale.
func Stock(on Server, sc StockScenario) (Report, error) {
	x := &stockExplorer{StockScenario: sc, server: on, known: map[string]stockOutcome{}}
	first := &stockState{
		model: stockmodel.New(sc.Units, sc.Limit), faults: sc.Faults, ticks: sc.Ticks,
		clients: make([]stockClient, len(sc.Clients)), told: map[string]bool{},
	}
	units := strconv.FormatInt(sc.Units, 10)
	first.contents = Contents{{Name: "units", Fields: []string{
		"added=" + units, "free=" + units, "id=stock", "limit=" + strconv.FormatInt(sc.Limit, 10), "reserved=0", "sold=0", "tentative=0", "undecided=0",
	}}}
	return search(&x.report, first, (*stockState).clone, (*stockState).name, x.moves)
}

// A stockMove makes one step, and says which.
type stockMove[S any] func(s S) (string, error)

// search goes through all schedules from a state on, breadth first.
func search[S any](report *Report, first S, clone func(S) S, name func(S) string, moves func(S) []stockMove[S]) (Report, error) {
	type node struct {
		state S
		paths uint64
		trail []string
	}
	level := []node{{state: first, paths: 1}}
	for ; len(level) > 0; report.Longest++ {
		report.States += len(level)
		var next []node
		found := map[string]int{}
		for _, n := range level {
			moves := moves(n.state)
			for _, m := range moves {
				s := clone(n.state)
				what, err := m(s)
				trail := append(slices.Clip(n.trail), what)
				if err != nil {
					return *report, &Violation{Property: err, Schedule: trail}
				}
				report.Steps++
				called := name(s)
				i, ok := found[called]
				if !ok {
					i = len(next)
					found[called] = i
					next = append(next, node{state: s, trail: trail})
				}
				next[i].paths = add(next[i].paths, n.paths)
			}
			if len(moves) == 0 {
				report.Schedules = add(report.Schedules, n.paths)
			}
		}
		level = next
	}
	return *report, nil
}

type stockExplorer struct {
	StockScenario
	server Server
	known  map[string]stockOutcome // by what a run depends on
	report Report
}

type stockOutcome struct {
	answer stockmodel.Answer
	to     Contents
	text   string
	err    error
}

// moves are the steps that may follow.
func (x *stockExplorer) moves(s *stockState) (moves []stockMove[*stockState]) {
	if s.ended {
		return nil
	}
	for i, c := range s.clients {
		if c.at >= len(x.Clients[i]) {
			continue
		}
		moves = append(moves, func(s *stockState) (string, error) { return x.send(s, i, "and hears the answer") })
		if s.faults > 0 {
			for _, how := range []string{"whose answer is lost", "which is late"} {
				moves = append(moves, func(s *stockState) (string, error) { return x.send(s, i, how) })
			}
		}
		if c.again {
			moves = append(moves, func(s *stockState) (string, error) {
				s.clients[i] = stockClient{at: c.at + 1}
				return fmt.Sprintf("%c goes on without an answer", 'A'+i), nil
			}, func(s *stockState) (string, error) {
				s.clients[i] = stockClient{at: len(x.Clients[i])}
				return fmt.Sprintf("%c dies", 'A'+i), nil
			})
		}
	}
	for i, c := range s.late {
		if slices.Index(s.late, c) == i {
			moves = append(moves, func(s *stockState) (string, error) {
				s.late = slices.Delete(s.late, i, i+1)
				a, err := x.execute(s, c)
				return fmt.Sprintf("a late copy arrives: %v: %s", c, a.Word), err
			})
		}
	}
	if len(moves) == 0 {
		return []stockMove[*stockState]{x.finish}
	}
	if s.ticks > 0 {
		moves = append(moves, func(s *stockState) (string, error) {
			s.ticks--
			s.now++
			if x.Forgets { // what may be forgotten, and is not yet, would be neither here nor there
				if _, err := x.execute(s, StockCommand{Op: Sweep}); err != nil {
					return "", err
				}
			}
			return fmt.Sprintf("a tick passes: it is %d", s.now), nil
		})
	}
	return moves
}

// send has a client send the command that it is at.
func (x *stockExplorer) send(s *stockState, i int, how string) (string, error) {
	c := x.Clients[i][s.clients[i].at]
	what := fmt.Sprintf("%c sends %v, %s", 'A'+i, c, how)
	if how == "which is late" {
		s.faults--
		s.late = append(s.late, c)
		s.clients[i].again = true
		return what, nil
	}
	a, err := x.execute(s, c)
	what += ": " + a.Word
	if err != nil {
		return what, err
	}
	if how == "whose answer is lost" {
		s.faults--
		s.clients[i].again = true
		return what, nil
	}
	s.clients[i] = stockClient{at: s.clients[i].at + 1}
	if a.Word != "ok" && a.Word != "unknown" {
		s.clients[i].at = len(x.Clients[i])
	}
	if err := x.tell(s, c, a); err != nil {
		return what, err
	}
	return what, x.beliefs(s)
}

// tell notes what a caller is told, and that it is not the contrary of what one
// was told before.
func (x *stockExplorer) tell(s *stockState, c StockCommand, a stockmodel.Answer) error {
	sold, never := false, false
	switch c.Op {
	case Confirm:
		sold, never = a.Word == "ok", a.Word == "expired" || a.Word == "cancelled"
	case Cancel:
		sold, never = a.Word == "sold", a.Word == "ok" || a.Word == "unknown"
	case Reserve, Extend:
		never = a.Word == "expired" || a.Word == "cancelled"
	}
	if x.Forgets || !sold && !never {
		return nil
	}
	if was, ok := s.told[c.Order]; ok && was != sold {
		return fmt.Errorf("told: order %s is sold=%v, and was told to be sold=%v", c.Order, sold, was)
	}
	s.told[c.Order] = sold
	return nil
}

// beliefs checks that what callers were told is so.
func (x *stockExplorer) beliefs(s *stockState) error {
	var text string
	if orders := s.contents.Key("orders"); orders != nil {
		text = strings.Join(orders.Fields, "\n")
	}
	for id, sold := range s.told {
		has := func(state string) bool { return strings.Contains("\n"+text, "\no:"+id+"="+state+" ") }
		if sold && !has("s") || !sold && (has("s") || has("r") && !s.over(id)) {
			return fmt.Errorf("told: order %s was told to be sold=%v, and there is\n%s", id, sold, text)
		}
	}
	return nil
}

// over reports whether an order's time is over, or that it is not live.
func (s *stockState) over(id string) bool {
	o, ok := s.model.Orders[id]
	return !ok || o.State != 'r' || o.At <= stockClock(s.now)
}

// stockClock is the server's time in milliseconds.
func stockClock(now int) int64 { return 1000 + int64(now)*Tick.Milliseconds() }

// execute has the server run a command, and compares.
func (x *stockExplorer) execute(s *stockState, c StockCommand) (stockmodel.Answer, error) {
	at := fmt.Sprintf("%s|%d|%+v", s.text, s.now, c)
	o, ok := x.known[at]
	if !ok {
		o = x.run(s, c)
		x.known[at] = o
	}
	if o.err != nil {
		return o.answer, o.err
	}
	want := x.step(s, c)
	s.contents, s.text = o.to, o.text
	if err := same(c, want, o.answer); err != nil {
		return o.answer, err
	}
	return o.answer, x.sums(s)
}

// same compares an answer with the one that should be.
func same(c StockCommand, want, got stockmodel.Answer) error {
	if got.Word == "ok" || words[want.Word] {
		want.Left, got.Left = 0, 0 // how much is left matters where something is refused
	}
	if want.Word == "wait" {
		got.Left = 0
	}
	if c.Op == Deliver || got.Order.State == 0 {
		want.Order = got.Order
	}
	want.Order.Forget = 0
	if got != want {
		return fmt.Errorf("answer: to %v it is %+v, and should be %+v", c, got, want)
	}
	return nil
}

// words are those of which what is left says nothing.
var words = map[string]bool{"expired": true, "cancelled": true, "unknown": true, "reserved": true}

// step is what c is to do, and to answer.
func (x *stockExplorer) step(s *stockState, c StockCommand) stockmodel.Answer {
	m, now, keep := s.model, stockClock(s.now), x.keep()
	window := int64(c.Ticks) * Tick.Milliseconds()
	switch c.Op {
	case Reserve:
		return m.Reserve(now, keep, c.Order, c.Units, window, c.Buyer, 'r')
	case Tentative:
		return m.Reserve(now, keep, c.Order, c.Units, window, c.Buyer, 't')
	case Settle:
		return m.Settle(now, keep, c.Order, window)
	case GiveBack:
		return m.Settle(now, keep, c.Order, 0)
	case Confirm:
		return m.Confirm(now, keep, c.Order)
	case Cancel:
		return m.Cancel(now, keep, keep, c.Order)
	case Extend:
		return m.Extend(now, keep, c.Order, window)
	case Refund:
		return m.Refund(now, keep, c.Order, c.Request, c.Units)
	case Deliver:
		return m.Add(now, keep, c.Request, c.Units)
	default:
		m.Pass(now, keep)
		m.Trim(now)
		return stockmodel.Answer{Word: "ok"}
	}
}

func (x *stockExplorer) keep() int64 { return int64(x.Retention) * Tick.Milliseconds() }

// run runs a command, and the same once more.
func (x *stockExplorer) run(s *stockState, c StockCommand) (o stockOutcome) {
	script, keys, args := x.script(c)
	once := func(from Contents) (a stockmodel.Answer, to Contents, err error) {
		x.report.Runs++
		reply, to, err := x.server.Run(from, time.Duration(s.now)*Tick, script, keys, args)
		if err == nil {
			a, err = readAnswer(c, reply)
		}
		return a, to, err
	}
	if o.answer, o.to, o.err = once(s.contents); o.err != nil {
		o.err = fmt.Errorf("reply to %v: %w", c, o.err)
		return o
	}
	o.text = o.to.String()
	_, twice, err := once(o.to)
	switch {
	case err != nil:
		o.err = fmt.Errorf("reply to a repeat of %v: %w", c, err)
	case !x.Forgets && twice.String() != o.text:
		o.err = fmt.Errorf("twice: a repeat of %v changed something\nafter one   %v\nafter two   %v", c, o.to, twice)
	}
	return o
}

// script is what package segmented has the server run.
func (x *stockExplorer) script(c StockCommand) (s *scripts.Script, keys, args []string) {
	ms := func(ticks int) string { return strconv.FormatInt(int64(ticks)*Tick.Milliseconds(), 10) }
	units := strconv.FormatInt(c.Units, 10)
	keep := ms(x.Retention)
	bit := map[bool]string{true: "1", false: "0"}
	keys, args = stockKeys, []string{"stock", "channel", "PUBLISH", keep, c.Order}
	switch c.Op {
	case Reserve:
		s, args = scripts.StockReserve, append(args[:4], c.transfers(), c.Order, units, ms(c.Ticks), c.Buyer, "r")
	case Tentative:
		s, args = scripts.StockReserve, append(args[:4], "", c.Order, units, ms(c.Ticks), c.Buyer, "t")
	case Settle:
		s, args = scripts.StockSettle, append(args, ms(c.Ticks))
	case GiveBack:
		s, args = scripts.StockSettle, append(args, "0")
	case Confirm:
		s = scripts.StockConfirm
	case Cancel:
		s, args = scripts.StockCancel, append(args, keep)
	case Extend:
		s, args = scripts.StockExtend, append(args, ms(c.Ticks))
	case Refund:
		s, args = scripts.StockRefund, append(args, c.Request, units)
	case Deliver:
		s, args = scripts.StockAdd, append(args[:4], c.Request, units)
	case Give:
		s, args = scripts.StockGive, append(args[:4], strconv.Itoa(1-c.Bucket), units, bit[c.Half], strconv.Itoa(c.Bucket), bit[c.Large])
	case Take:
		s, args = scripts.StockTake, append(args[:4], c.transfers())
	case Arrived:
		s, keys, args = scripts.StockArrived, stockKeys[:1], []string{"stock", strconv.Itoa(1 - c.Bucket), strconv.FormatInt(c.Number, 10)}
	case Look:
		s, keys, args = scripts.StockView, []string{"units", "orders", "ends", "expired"}, []string{"stock"}
		if c.Order != "" {
			args = append(args, c.Order)
		}
	default:
		s, args = scripts.StockSweep, append(args[:4], "100", "0")
	}
	if other := x.Instead[s]; other != nil {
		s = other
	}
	return s, keys, args
}

// transfers is what comes with a command from the other bucket.
func (c StockCommand) transfers() string {
	if c.Number == 0 {
		return ""
	}
	return fmt.Sprintf("%d %d %d ", 1-c.Bucket, c.Number, c.Sent)
}

// readAnswer goes by the headers of the scripts.
func readAnswer(c StockCommand, reply any) (a stockmodel.Answer, err error) {
	list, ok := reply.([]any)
	if !ok {
		return a, fmt.Errorf("its header does not know %v", reply)
	}
	if c.Op == Reserve || c.Op == Tentative {
		if len(list) != 1 {
			return a, fmt.Errorf("its header does not know %v", reply)
		}
		if now, took := list[0].(int64); took {
			a.Word = "ok"
			a.Order = stockmodel.Order{State: 'r', Units: c.Units, At: now + int64(c.Ticks)*Tick.Milliseconds(), Buyer: c.Buyer}
			if c.Op == Tentative {
				a.Order.State = 't'
			}
			return a, nil
		}
		if list, ok = list[0].([]any); !ok {
			return a, fmt.Errorf("its header does not know %v", reply)
		}
	}
	switch {
	case c.Op == Sweep && len(list) == 3:
		return stockmodel.Answer{Word: "ok"}, nil
	case c.Op == Deliver && len(list) == 2:
		a.Word, _ = list[0].(string)
		if a.Word == "replayed" {
			a.Word, a.Replayed = "ok", true
		}
		if a.Word == "conflict" {
			a.Left, _ = list[1].(int64)
		}
		return a, nil
	case len(list) != 9:
		return a, fmt.Errorf("its header does not know %v", reply)
	}
	var replayed, now int64
	var state string
	for i, to := range []any{&a.Word, &a.Left, &now, &state, &a.Order.Units, &a.Order.Refunded, &a.Order.At, &a.Order.Buyer, &replayed} {
		switch to := to.(type) {
		case *string:
			*to, ok = list[i].(string)
		case *int64:
			*to, ok = list[i].(int64)
		}
		if !ok {
			return a, fmt.Errorf("its header does not know %v", reply)
		}
	}
	if a.Replayed = replayed == 1; state != "" {
		a.Order.State = state[0]
	}
	return a, nil
}

// sums compares what the server holds with the model, and adds it up.
func (x *stockExplorer) sums(s *stockState) error {
	if err := s.model.Check(); err != nil {
		return err
	}
	n := map[string]int64{}
	for _, f := range s.contents.Key("units").Fields {
		name, value, _ := strings.Cut(f, "=")
		n[name], _ = strconv.ParseInt(value, 10, 64)
	}
	m := s.model
	switch {
	case n["free"] < 0 || n["reserved"] < 0 || n["tentative"] < 0 || n["sold"] < 0:
		return fmt.Errorf("sums: less than nothing: %v", n)
	case n["free"]+n["reserved"]+n["tentative"]+n["sold"] != n["added"]:
		return fmt.Errorf("sums: units do not sum up: %v", n)
	case n["sold"] != m.Sold || n["added"] != m.Added || n["free"]+n["reserved"]+n["tentative"] != m.Free+m.Reserved+m.Tentative:
		return fmt.Errorf("sums: %v, and should be %v", n, m)
	case n["free"] > m.Free:
		return fmt.Errorf("sums: %d units on sale that are somebody's: %v", n["free"]-m.Free, m)
	}
	return nil
}

// finish lets all time pass, and looks at what is left.
func (x *stockExplorer) finish(s *stockState) (string, error) {
	const what = "all is quiet, and all time over"
	s.ended = true
	for range 3 { // what expires, and is forgotten later
		s.now += 1000
		if _, err := x.execute(s, StockCommand{Op: Sweep}); err != nil {
			return what, err
		}
	}
	for _, name := range stockKeys {
		k := s.contents.Key(name)
		switch {
		case name == "units":
			if !slices.Contains(k.Fields, fmt.Sprint("free=", s.model.Added-s.model.Sold)) {
				return what, fmt.Errorf("stranded: %v, and %d are sold", k.Fields, s.model.Sold)
			}
		case name == "buyers":
			var has int64
			if k != nil {
				for _, f := range k.Fields {
					n, _ := strconv.ParseInt(f[strings.LastIndexByte(f, '=')+1:], 10, 64)
					has += n
				}
			}
			if x.Limit > 0 && has != s.model.Sold {
				return what, fmt.Errorf("limit: buyers have %d units, and %d are sold", has, s.model.Sold)
			}
		case k != nil:
			return what, fmt.Errorf("left over: %v", s.contents)
		}
	}
	if len(s.model.Orders) > 0 {
		return what, errors.New("the model forgets nothing")
	}
	return what, nil
}
