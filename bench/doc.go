// Package bench compares Holdfast with other lock libraries and with what the
// wire allows. Its benchmarks are in the test files, one file for each workload;
// impl_*.go has one small adapter for each implementation.
//
//	go test -bench=.                                   # all of it, by hand
//	go test -run='^$' -bench='^BenchmarkHandoff$/^impl=holdfast$'
//	go run ./runner                                    # rounds, and docs/benchmarks.md
//
// Each benchmark starts a server of its own on a free loopback port. The runner
// gives each measurement a process of its own too.
package bench
