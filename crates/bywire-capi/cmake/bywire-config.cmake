# Bywire for CMake: find_package(bywire CONFIG) makes the targets
#
#     bywire::bywire    the shared library, bywire.h and bywire.hpp
#     bywire::static    the static library, where it is installed, with the same headers
#
# bywire.hpp requires C++20: target_compile_features(program PRIVATE cxx_std_20).

# This file moves with its installation: libraries are two directories above, which are `lib` or, as Debian has it,
# `lib/x86_64-linux-gnu`. Links are followed first, as /lib may be one to /usr/lib.
get_filename_component(_bywire_lib "${CMAKE_CURRENT_LIST_DIR}" REALPATH)
get_filename_component(_bywire_lib "${_bywire_lib}/../.." ABSOLUTE)
get_filename_component(_bywire_include "${_bywire_lib}/../include" ABSOLUTE)
if(NOT EXISTS "${_bywire_include}/bywire.h")
  get_filename_component(_bywire_include "${_bywire_lib}/../../include" ABSOLUTE)
endif()

foreach(_bywire_file "${_bywire_lib}/@SONAME@" "${_bywire_include}/bywire.h" "${_bywire_include}/bywire.hpp")
  if(NOT EXISTS "${_bywire_file}")
    set(${CMAKE_FIND_PACKAGE_NAME}_FOUND FALSE)
    set(${CMAKE_FIND_PACKAGE_NAME}_NOT_FOUND_MESSAGE "${_bywire_file} is missing: install Bywire again")
    return()
  endif()
endforeach()

if(NOT TARGET bywire::bywire)
  add_library(bywire::bywire SHARED IMPORTED)
  set_target_properties(bywire::bywire PROPERTIES
    IMPORTED_LOCATION "${_bywire_lib}/@SONAME@"
    IMPORTED_SONAME "@SONAME@"
    INTERFACE_INCLUDE_DIRECTORIES "${_bywire_include}")
endif()

if(NOT TARGET bywire::static AND EXISTS "${_bywire_lib}/libbywire.a")
  add_library(bywire::static STATIC IMPORTED)
  set_target_properties(bywire::static PROPERTIES
    IMPORTED_LOCATION "${_bywire_lib}/libbywire.a"
    IMPORTED_LINK_INTERFACE_LANGUAGES "C"
    INTERFACE_LINK_LIBRARIES "@LIBRARIES@"
    INTERFACE_INCLUDE_DIRECTORIES "${_bywire_include}")
endif()

unset(_bywire_lib)
unset(_bywire_include)
unset(_bywire_file)
