// Package acceptance holds the tests of package endpoint that need brokers or drivers. They are
// apart from it so that a program that imports endpoint does not get the modules of all brokers.
package acceptance
