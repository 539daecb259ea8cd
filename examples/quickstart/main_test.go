package main

func Example() {
	main()
	// Output:
	// order 42: attempt 1
	// order 42: attempt 2
	// order 42: attempt 3
}
