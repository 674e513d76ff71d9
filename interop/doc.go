// Package interop proves that Go on Holdfast and Java on Redisson share locks. It
// has nothing to import: its tests drive real Redisson, in a small Java program of
// the directory java, beside Go participants on one server and on a cluster.
//
//	make interop                                   # from the root: builds the program, runs all
//	go test -run=TestWakeUp ./...                  # when it is built
//
// Without the built program the tests fail; they skip nothing.
package interop
