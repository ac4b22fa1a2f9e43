// The whole class, for a compiler to read PyTorch's headers once.

#include "allocate.cpp"
#include "devices.cpp"
#include "diversions.cpp"
#include "foreign.cpp"
#include "history.cpp"
#include "install.cpp"
#include "library.cpp"
#include "pools.cpp"
#include "report.cpp"
#include "share.cpp"
#include "statistics.cpp"
