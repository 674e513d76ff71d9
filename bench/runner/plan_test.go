package main

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/bench"
)

func names(p plan) []string {
	var all []string
	for _, b := range p {
		for _, j := range b {
			all = append(all, j.cell.String())
		}
	}
	return all
}

func TestPlan_measuresEveryCellOnceInARound(t *testing.T) {
	p := makePlan(settings{})
	var want []string
	for _, w := range bench.Workloads {
		for _, c := range w.Cells() {
			want = append(want, c.String())
		}
	}
	for n := range 5 {
		require.ElementsMatch(t, want, names(p.round(n)))
	}
}

func TestPlan_turnsTheOrder(t *testing.T) {
	p := makePlan(settings{})
	var firsts []string
	for n := range 5 {
		round := names(p.round(n))
		i := slices.IndexFunc(round, func(name string) bool { return name[:len("Handoff")] == "Handoff" })
		firsts = append(firsts, round[i])
	}
	slices.Sort(firsts)
	require.Greater(t, len(slices.Compact(firsts)), 2)
}

func TestPlan_fitsItsTime(t *testing.T) {
	require.Less(t, makePlan(settings{}).estimate(5), 15*time.Minute)
	require.Less(t, makePlan(settings{quick: true}).estimate(1), time.Minute)
}

func TestPlan_readersTakeLittle(t *testing.T) {
	s, err := parse([]string{"-only", "^Readers/"})
	require.NoError(t, err)
	p := makePlan(s)
	require.Len(t, names(p), 2*len(bench.Readers.Impls))
	require.Less(t, p.estimate(5), time.Minute)
}

func TestPlan_salesTakeLittle(t *testing.T) {
	s, err := parse([]string{"-only", "^(Stock|SoldOut)/"})
	require.NoError(t, err)
	p := makePlan(s)
	require.Len(t, names(p), 4*len(bench.Stock.Impls)+len(bench.SoldOut.Impls))
	require.Less(t, p.estimate(5), 90*time.Second)
}

func TestPlan_ofAPart(t *testing.T) {
	s, err := parse([]string{"-only", "^Handoff/impl=(holdfast|limit-grant)/"})
	require.NoError(t, err)
	require.Equal(t, []string{"Handoff/impl=holdfast/processes=4", "Handoff/impl=limit-grant/processes=4"}, names(makePlan(s)))
}

func TestParse_refusesArguments(t *testing.T) {
	_, err := parse([]string{"quick"})
	require.Error(t, err)
}
