package main

func Example() {
	main()
	// Output: order 4711 was placed (attempt 1)
}
