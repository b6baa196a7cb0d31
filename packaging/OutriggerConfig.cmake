# Outrigger for CMake 3.15 and newer: find_package(Outrigger REQUIRED), then link with
#   Outrigger::outrigger   the C functions of outrigger.h, and outrigger.hpp over them
#   Outrigger::bridge      the classes of the cxx bridge (outrigger/src/bridge.rs.h, C++17) besides; its
#                          sources are compiled into each target that links with it
# All paths follow this file, so that the folder can be moved.

get_filename_component(_outrigger_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET Outrigger::outrigger)
  add_library(Outrigger::outrigger SHARED IMPORTED)
  set_target_properties(Outrigger::outrigger PROPERTIES
    IMPORTED_LOCATION "${_outrigger_prefix}/lib/liboutrigger.so"
    IMPORTED_SONAME "liboutrigger.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_outrigger_prefix}/include")

  add_library(Outrigger::bridge INTERFACE IMPORTED)
  set_target_properties(Outrigger::bridge PROPERTIES
    INTERFACE_LINK_LIBRARIES Outrigger::outrigger
    INTERFACE_COMPILE_FEATURES cxx_std_17
    INTERFACE_SOURCES
      "${_outrigger_prefix}/share/outrigger/bridge/bridge.rs.cc;${_outrigger_prefix}/share/outrigger/bridge/cxx.cc")
endif()

set(Outrigger_FOUND TRUE)
unset(_outrigger_prefix)
