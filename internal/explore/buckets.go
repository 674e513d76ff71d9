package explore

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/stockmodel"
	"github.com/holdfast-go/holdfast/scripts"
)

// A BucketsScenario is what schedules over a stock of two buckets are made of. Its
// programs have, besides the commands of one bucket, Buy, Move and Finish, which are
// several commands each, as package segmented sends them.
type BucketsScenario struct {
	Units     [2]int64
	Clients   [][]StockCommand
	Faults    int // at most so many answers or commands are lost or late, and processes die
	Ticks     int
	Retention int
	Looks     int  // a buyer looks so often before it tries again
	Tries     int  // a buyer tries so often
	Half      bool // units share the buckets
	Instead   map[*scripts.Script]*scripts.Script

	// Short says whether an order cannot be had, by two looks of which the second saw
	// too little; nil is the rule of package segmented.
	Short func(before, now Cut, wanted int64) bool
}

// A Part is what a look sees of a bucket.
type Part struct {
	Free, Tentative, Due, Given, Taken, Raised int64

	seen  bool
	there bool
	sent  sending
}

// A Cut is what two looks, one for each bucket, have seen.
type Cut [2]Part

// Sum is how many units there were, or could be soon.
func (c Cut) Sum() int64 { return c[0].Free + c[0].Tentative + c[1].Free + c[1].Tentative }

// Short is the rule by which sold out is told.
func Short(before, now Cut, wanted int64) bool {
	for i := range now {
		b, n := before[i], now[i]
		if !b.seen || b.Raised != n.Raised || b.Given != n.Given || b.Taken != n.Taken {
			return false
		}
	}
	return before.Sum() < wanted
}

// A sending is a transfer that the bucket which has sent it knows.
type sending struct {
	number, units int64
}

// A side is one bucket.
type side struct {
	contents Contents
	text     string
	model    *stockmodel.Stock
	open     sending // to the other bucket; zero: none
	last     int64   // the number that came from the other bucket last
	sent     int64   // the number that was sent last
}

// A process is how far a client has come.
type process struct {
	at      int
	again   bool // a copy was sent of which nothing was heard
	asking  bool // it looks
	todo    []StockCommand
	now     Cut
	before  Cut // the last look at which nothing was on its way
	looks   int
	tries   int
	coming  sending
	enough  bool // since it asked there were enough units at every moment
	inquiry bool // it has asked
}

type bucketsState struct {
	sides   [2]side
	now     int
	faults  int
	ticks   int
	ended   bool
	put     int64 // units that were put on sale
	clients []process
	late    []StockCommand
}

func (s *bucketsState) clone() *bucketsState {
	c := *s
	c.clients, c.late = slices.Clone(s.clients), slices.Clone(s.late)
	for i := range c.sides {
		c.sides[i].model = s.sides[i].model.Clone()
	}
	return &c
}

func (s *bucketsState) name() string {
	var b strings.Builder
	fmt.Fprint(&b, s.now, s.faults, s.ticks, s.ended, s.clients)
	for i := range s.sides {
		// What the model holds follows from this, but for what is over.
		fmt.Fprint(&b, s.sides[i].text, s.sides[i].model.Free, s.sides[i].open, s.sides[i].last)
	}
	late := make([]string, len(s.late))
	for i, c := range s.late {
		late[i] = fmt.Sprint(c.Op, c)
	}
	slices.Sort(late)
	fmt.Fprint(&b, late)
	return b.String()
}

// Buckets goes through all schedules of a scenario, as [Stock] does for one bucket.
// Besides, units that leave a bucket come to the other one, once; sold out is told
// only if there was a moment since the question at which too few units were free, on
// their way, tentative, or of orders whose time was over; and when all is quiet, a
// last process can put whatever is not sold on sale.
func Buckets(on Server, sc BucketsScenario) (Report, error) {
	x := &bucketsExplorer{
		BucketsScenario: sc, server: on, known: map[string]bucketsOutcome{},
		one: stockExplorer{StockScenario: StockScenario{Retention: sc.Retention, Instead: sc.Instead}},
	}
	if x.Short == nil {
		x.Short = Short
	}
	first := &bucketsState{faults: sc.Faults, ticks: sc.Ticks, put: sc.Units[0] + sc.Units[1], clients: make([]process, len(sc.Clients))}
	for i := range first.sides {
		units := strconv.FormatInt(sc.Units[i], 10)
		c := Contents{{Name: "units", Fields: []string{
			"added=" + units, "free=" + units, "id=stock", "limit=0", "raised=0", "reserved=0", "sold=0", "tentative=0", "undecided=0",
		}}}
		first.sides[i] = side{contents: c, text: c.String(), model: stockmodel.New(sc.Units[i], 0)}
	}
	for i := range first.clients {
		x.begin(first, i)
	}
	return search(&x.report, first, (*bucketsState).clone, (*bucketsState).name, x.moves)
}

type bucketsExplorer struct {
	BucketsScenario
	server Server
	one    stockExplorer // for what one bucket does
	known  map[string]bucketsOutcome
	report Report
}

type bucketsOutcome struct {
	answer  stockmodel.Answer
	numbers []int64 // of a reply that is no answer
	part    Part
	to      Contents
	text    string
	err     error
}

// writes reports whether a command may change something: what only reads can be lost
// without harm.
func (c StockCommand) writes() bool { return c.Op != Look }

// next are the commands that a client may send now.
func (x *bucketsExplorer) next(s *bucketsState, i int) []StockCommand {
	p := &s.clients[i]
	if p.at >= len(x.Clients[i]) {
		return nil
	}
	c := x.Clients[i][p.at]
	switch {
	case len(p.todo) > 0:
		return p.todo[:1]
	case p.asking:
		var looks []StockCommand
		for b := range p.now {
			if !p.now[b].seen {
				look := StockCommand{Op: Look, Bucket: b}
				if c.Op == Buy && b == c.Bucket {
					look.Order = c.Order
				}
				looks = append(looks, look)
			}
		}
		return looks
	case c.Op == Buy:
		c.Op = Reserve
		if p.coming.number > 0 {
			c.Number, c.Sent = p.coming.number, p.coming.units
		}
	}
	return []StockCommand{c}
}

// begin has a client begin with the next part of its program.
func (x *bucketsExplorer) begin(s *bucketsState, i int) {
	p := &s.clients[i]
	*p = process{at: p.at, before: p.before}
	if p.at >= len(x.Clients[i]) {
		p.before = Cut{}
		return
	}
	switch c := x.Clients[i][p.at]; c.Op {
	case Move:
		p.todo = []StockCommand{{Op: Give, Bucket: c.Bucket, Units: c.Units}}
	case Finish:
		p.asking = true
	}
}

func (x *bucketsExplorer) end(s *bucketsState, i int) {
	s.clients[i].at = len(x.Clients[i])
	x.begin(s, i)
}

func (x *bucketsExplorer) moves(s *bucketsState) (moves []stockMove[*bucketsState]) {
	if s.ended {
		return nil
	}
	step := func(do func(s *bucketsState) (string, error)) {
		moves = append(moves, func(s *bucketsState) (string, error) {
			what, err := do(s)
			if err == nil {
				x.watch(s)
			}
			return what, err
		})
	}
	for i := range s.clients {
		for _, c := range x.next(s, i) {
			step(func(s *bucketsState) (string, error) { return x.send(s, i, c, "and hears the answer") })
			if s.faults > 0 && c.writes() {
				step(func(s *bucketsState) (string, error) { return x.send(s, i, c, "whose answer is lost") })
				step(func(s *bucketsState) (string, error) { return x.send(s, i, c, "which is late") })
			}
		}
		if s.clients[i].again {
			step(func(s *bucketsState) (string, error) {
				x.end(s, i)
				return fmt.Sprintf("%c dies", 'A'+i), nil
			})
		}
	}
	for i, c := range s.late {
		if slices.Index(s.late, c) != i {
			continue
		}
		step(func(s *bucketsState) (string, error) {
			s.late = slices.Delete(s.late, i, i+1)
			_, err := x.execute(s, c)
			return fmt.Sprintf("a late copy arrives: %v", c), err
		})
		if s.faults > 0 && c.Op == Arrived {
			step(func(s *bucketsState) (string, error) {
				s.faults--
				s.late = slices.Delete(s.late, i, i+1)
				return fmt.Sprintf("lost for ever: %v", c), nil
			})
		}
	}
	if len(moves) == 0 {
		return []stockMove[*bucketsState]{x.finish}
	}
	if s.ticks > 0 {
		step(func(s *bucketsState) (string, error) {
			s.ticks--
			s.now++
			for i := range s.sides {
				s.sides[i].model.Pass(stockClock(s.now), x.one.keep())
			}
			return fmt.Sprintf("a tick passes: it is %d", s.now), nil
		})
	}
	return moves
}

// watch notes for those who have asked whether there were enough units.
func (x *bucketsExplorer) watch(s *bucketsState) {
	there := int64(0)
	for i := range s.sides {
		there += s.sides[i].model.Free + s.sides[i].model.Tentative + s.flying(i)
	}
	for i := range s.clients {
		if p := &s.clients[i]; p.inquiry && there < x.Clients[i][p.at].Units {
			p.enough = false
		}
	}
}

// flying are the units that a bucket has sent, and the other one has not taken in.
func (s *bucketsState) flying(from int) int64 {
	if o := s.sides[from].open; o.number > s.sides[1-from].last {
		return o.units
	}
	return 0
}

func (x *bucketsExplorer) send(s *bucketsState, i int, c StockCommand, how string) (string, error) {
	what := fmt.Sprintf("%c sends %v, %s", 'A'+i, c, how)
	p := &s.clients[i]
	if how == "which is late" {
		s.faults--
		s.late = append(s.late, c)
		p.again = true
		return what, nil
	}
	o, err := x.execute(s, c)
	what += fmt.Sprintf(": %s%v", o.answer.Word, o.numbers)
	if err != nil {
		return what, err
	}
	if how == "whose answer is lost" {
		s.faults--
		p.again = true
		return what, nil
	}
	p.again = false
	return what, x.hear(s, i, c, o)
}

// hear has a client go on with an answer.
func (x *bucketsExplorer) hear(s *bucketsState, i int, c StockCommand, o bucketsOutcome) error {
	p := &s.clients[i]
	program := x.Clients[i][p.at]
	switch c.Op {
	case Look:
		p.now[c.Bucket] = o.part
		if p.now[0].seen && p.now[1].seen {
			return x.judge(s, i)
		}
		return nil
	case Give, Take, Arrived, Sweep:
		if len(p.todo) == 0 { // a command of its own
			break
		}
		p.todo = slices.Clone(p.todo[1:])
		if c.Op == Give {
			if t := (sending{o.numbers[0], o.numbers[1]}); t.number > 0 && program.Op == Buy {
				p.coming = t
			} else if t.number > 0 {
				p.todo = append(p.todo,
					StockCommand{Op: Take, Bucket: 1 - c.Bucket, Number: t.number, Sent: t.units},
					StockCommand{Op: Arrived, Bucket: c.Bucket, Number: t.number})
			}
		}
		if len(p.todo) == 0 && program.Op != Buy {
			p.at++
			x.begin(s, i)
		}
		return nil
	case Reserve:
		if p.coming.number > 0 { // the rest is done behind the caller's back
			s.late = append(s.late, StockCommand{Op: Arrived, Bucket: 1 - c.Bucket, Number: p.coming.number})
			p.coming = sending{}
		}
		if o.answer.Word == "soldout" {
			if p.tries++; p.tries >= x.Tries {
				x.end(s, i)
				return nil
			}
			p.asking, p.now, p.looks = true, Cut{}, 0
			p.inquiry, p.enough = true, true
			return nil
		}
	}
	p.at++
	x.begin(s, i)
	if o.answer.Word != "ok" && o.answer.Word != "unknown" {
		x.end(s, i)
	}
	return nil
}

// judge is what package segmented does when it has looked into all buckets.
func (x *bucketsExplorer) judge(s *bucketsState, i int) error {
	p := &s.clients[i]
	c := x.Clients[i][p.at]
	now := p.now
	p.now = Cut{}
	p.asking = false
	for b, part := range now {
		if part.Due > 0 {
			p.todo = append(p.todo, StockCommand{Op: Sweep, Bucket: b})
		}
	}
	if len(p.todo) == 0 || c.Op == Finish {
		var noted []StockCommand
		p.todo = nil
		for b, part := range now {
			if t := part.sent; t.number > 0 {
				p.todo = append(p.todo, StockCommand{Op: Take, Bucket: 1 - b, Number: t.number, Sent: t.units})
				noted = append(noted, StockCommand{Op: Arrived, Bucket: b, Number: t.number})
			}
		}
		p.todo = append(p.todo, noted...)
	}
	again := func() {
		if p.looks++; p.looks < x.Looks {
			p.asking = true
		} else {
			p.inquiry, p.enough = false, false
		}
	}
	switch {
	case c.Op == Finish:
		if len(p.todo) == 0 {
			p.at++
			x.begin(s, i)
		}
	case now[c.Bucket].there:
		p.todo = nil
		p.inquiry, p.enough = false, false
	case len(p.todo) > 0:
		again()
	case now.Sum() >= c.Units:
		p.before = now
		p.inquiry, p.enough = false, false
		need := c.Units - now[c.Bucket].Free
		if now[0].Free+now[1].Free >= c.Units && need > 0 {
			p.todo = []StockCommand{{Op: Give, Bucket: 1 - c.Bucket, Units: need, Half: x.Half, Large: c.Units > 1}}
		}
	default:
		before := p.before
		p.before = now
		if !x.Short(before, now, c.Units) {
			again()
			break
		}
		if p.enough {
			return fmt.Errorf("verdict: order %s was told that it is sold out, and since it asked there were %d units at every moment", c.Order, c.Units)
		}
		p.at++
		x.begin(s, i)
	}
	return nil
}

// execute has the server run a command, and compares.
func (x *bucketsExplorer) execute(s *bucketsState, c StockCommand) (bucketsOutcome, error) {
	b := &s.sides[c.Bucket]
	at := fmt.Sprintf("%s|%d|%d %v", b.text, s.now, c.Op, c)
	o, ok := x.known[at]
	if !ok {
		o = x.run(b, s.now, c)
		x.known[at] = o
	}
	if o.err != nil {
		return o, o.err
	}
	if err := x.compare(s, c, o); err != nil {
		return o, err
	}
	b.contents, b.text = o.to, o.text
	return o, x.sums(s)
}

// compare has the models do what c is to do, and compares the answers.
func (x *bucketsExplorer) compare(s *bucketsState, c StockCommand, o bucketsOutcome) error {
	b := &s.sides[c.Bucket]
	b.model.Pass(stockClock(s.now), x.one.keep())
	if c.Number > 0 && c.Op != Arrived && c.Number > b.last {
		b.last = c.Number
		b.model.Free += c.Sent
		b.model.Added += c.Sent
	}
	switch c.Op {
	case Take:
		return nil
	case Arrived:
		if b.open.number == c.Number {
			b.open = sending{}
		}
		return nil
	case Give:
		return x.given(b, c, o.numbers)
	case Look:
		switch p := o.part; {
		case p.sent != b.open:
			return fmt.Errorf("look: it sees %v on its way, and there is %v", p.sent, b.open)
		case p.Due == 0 && (p.Free != b.model.Free || p.Tentative != b.model.Tentative):
			return fmt.Errorf("look: it sees %+v, and there is %v", p, b.model)
		case p.Due == 0 && c.Order != "":
			if _, there := b.model.Orders[c.Order]; there != p.there {
				return fmt.Errorf("look: order %s is there=%v", c.Order, p.there)
			}
		}
		return nil
	}
	want := x.one.step(&stockState{model: b.model, now: s.now}, c)
	if want.Word == "wait" { // the units may be had elsewhere
		want.Word, want.Left = "soldout", b.model.Free
	}
	if c.Op == Deliver && want.Word == "ok" && !want.Replayed {
		s.put += c.Units
	}
	return same(c, want, o.answer)
}

// given checks a transfer that was sent.
func (x *bucketsExplorer) given(b *side, c StockCommand, n []int64) error {
	number, units, free := n[0], n[1], b.model.Free
	switch {
	case b.open.number > 0:
		if number != b.open.number || units != b.open.units {
			return fmt.Errorf("give: it answers %v, and %v is on its way", n, b.open)
		}
		return nil
	case number < 0:
		if !c.Large || c.Bucket > 0 {
			return fmt.Errorf("give: %v is refused", c)
		}
		return nil
	case number == 0:
		if free > 0 {
			return fmt.Errorf("give: nothing, and there are %d", free)
		}
		return nil
	}
	most := min(free, c.Units)
	if c.Half {
		most = max(most, free/2)
	}
	if units < min(free, c.Units) || units > most {
		return fmt.Errorf("give: %v, to %v of %d", n, c, free)
	}
	if number <= b.sent {
		return fmt.Errorf("give: number %d after %d", number, b.sent)
	}
	b.open, b.sent = sending{number, units}, number
	b.model.Free -= units
	b.model.Added -= units
	return nil
}

// sums compares what the server holds with the models, and adds it up.
func (x *bucketsExplorer) sums(s *bucketsState) error {
	total := int64(0)
	for i := range s.sides {
		b := &s.sides[i]
		if err := b.model.Check(); err != nil {
			return err
		}
		total += b.model.Added + s.flying(i)
		n := map[string]int64{}
		for _, f := range b.contents.Key("units").Fields {
			name, value, _ := strings.Cut(f, "=")
			n[name], _ = strconv.ParseInt(value, 10, 64)
		}
		m := b.model
		switch is := n["free"] + n["reserved"] + n["tentative"] + n["sold"]; {
		case n["free"] < 0 || n["reserved"] < 0 || n["tentative"] < 0 || n["sold"] < 0 || n["transit"] < 0:
			return fmt.Errorf("sums: less than nothing: %v", n)
		case is != n["added"]+n["taken"]-n["given"]:
			return fmt.Errorf("sums: units of bucket %d do not sum up: %v", i, n)
		case n["transit"] != b.open.units:
			return fmt.Errorf("sums: bucket %d has sent %d, and %d are on their way: %v", i, n["transit"], b.open.units, n)
		case n["sold"] != m.Sold || is != m.Added || n["free"] > m.Free:
			return fmt.Errorf("sums: bucket %d has %v, and should have %v", i, n, m)
		}
	}
	if total != s.put {
		return fmt.Errorf("sums: there are %d units, and %d were put on sale", total, s.put)
	}
	return nil
}

// run runs a command, and the same once more.
func (x *bucketsExplorer) run(b *side, now int, c StockCommand) (o bucketsOutcome) {
	script, keys, args := x.one.script(c)
	once := func(from Contents) (o bucketsOutcome) {
		x.report.Runs++
		reply, to, err := x.server.Run(from, time.Duration(now)*Tick, script, keys, args)
		o.to, o.err = to, err
		if err == nil {
			o.read(c, reply)
		}
		return o
	}
	if o = once(b.contents); o.err != nil {
		o.err = fmt.Errorf("reply to %v: %w", c, o.err)
		return o
	}
	o.text = o.to.String()
	switch twice := once(o.to); {
	case twice.err != nil:
		o.err = fmt.Errorf("reply to a repeat of %v: %w", c, twice.err)
	case twice.to.String() != o.text:
		o.err = fmt.Errorf("twice: a repeat of %v changed something\nafter one   %v\nafter two   %v", c, o.to, twice.to)
	}
	return o
}

// read goes by the headers of the scripts.
func (o *bucketsOutcome) read(c StockCommand, reply any) {
	strange := fmt.Errorf("its header does not know %v", reply)
	numbers := func(v any) (n []int64) {
		list, _ := v.([]any)
		for _, e := range list {
			i, ok := e.(int64)
			if !ok {
				o.err = strange
			}
			n = append(n, i)
		}
		return n
	}
	switch c.Op {
	case Take, Arrived:
		n, ok := reply.(int64)
		if o.numbers = []int64{n}; !ok {
			o.err = strange
		}
	case Give:
		if o.numbers = numbers(reply); len(o.numbers) != 3 {
			o.err = strange
		}
	case Look:
		list, _ := reply.([]any)
		if len(list) != 3 {
			o.err = strange
			return
		}
		n, sent, there := numbers(list[0]), numbers(list[1]), numbers(list[2])
		if len(n) != 13 || len(sent)%3 != 0 || len(sent) > 3 || (c.Order != "") != (len(there) == 1) {
			o.err = strange
			return
		}
		o.part = Part{Free: n[0], Tentative: n[2], Due: n[6], Given: n[9], Taken: n[10], Raised: n[11], seen: true}
		o.part.there = len(there) == 1 && there[0] == 1
		if len(sent) > 0 {
			o.part.sent = sending{sent[1], sent[2]}
		}
	default:
		o.answer, o.err = readAnswer(c, reply)
	}
}

// finish lets all time pass, has a last process finish what was begun, and looks at
// what is left.
func (x *bucketsExplorer) finish(s *bucketsState) (string, error) {
	const what = "all is quiet, all time over, and a last process has done the rest"
	s.ended = true
	for range 3 {
		s.now += 1000
		for i := range s.sides {
			if _, err := x.execute(s, StockCommand{Op: Sweep, Bucket: i}); err != nil {
				return what, err
			}
		}
	}
	for i := range s.sides {
		o, err := x.execute(s, StockCommand{Op: Look, Bucket: i})
		if err != nil {
			return what, err
		}
		if t := o.part.sent; t.number > 0 {
			for _, c := range []StockCommand{
				{Op: Take, Bucket: 1 - i, Number: t.number, Sent: t.units}, {Op: Arrived, Bucket: i, Number: t.number},
			} {
				if _, err := x.execute(s, c); err != nil {
					return what, err
				}
			}
		}
	}
	for i := range s.sides {
		m := s.sides[i].model
		for _, name := range stockKeys {
			switch k := s.sides[i].contents.Key(name); {
			case name != "units" && k != nil:
				return what, fmt.Errorf("left over: %v", s.sides[i].contents)
			case name == "units" && (!slices.Contains(k.Fields, fmt.Sprint("free=", m.Added-m.Sold)) || strings.Contains(strings.Join(k.Fields, " "), "to:")):
				return what, fmt.Errorf("stranded: %v, and %d are sold", k.Fields, m.Sold)
			}
		}
		if len(m.Orders) > 0 {
			return what, errors.New("the model forgets nothing")
		}
	}
	return what, nil
}
