# Bywire for CMake: find_package(bywire CONFIG) makes the targets
#
#     bywire::bywire    the shared library, bywire.h and bywire.hpp
#     bywire::static    the static library, where it is installed, with the same headers
#
# bywire.hpp requires C++20: target_compile_features(program PRIVATE cxx_std_20).

# This file moves with its installation, which is three directories above. In /lib, where that is a link to /usr/lib, it
# lies below /usr all the same.
get_filename_component(_bywire_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
get_filename_component(_bywire_here "${CMAKE_CURRENT_LIST_DIR}" REALPATH)
get_filename_component(_bywire_installed "@PREFIX@/lib/cmake/bywire" REALPATH)
if(_bywire_here STREQUAL _bywire_installed)
  set(_bywire_prefix "@PREFIX@")
endif()

foreach(_bywire_file lib/@SHARED@ include/bywire.h include/bywire.hpp)
  if(NOT EXISTS "${_bywire_prefix}/${_bywire_file}")
    set(${CMAKE_FIND_PACKAGE_NAME}_FOUND FALSE)
    set(${CMAKE_FIND_PACKAGE_NAME}_NOT_FOUND_MESSAGE
        "${_bywire_prefix}/${_bywire_file} is missing: install Bywire again")
    return()
  endif()
endforeach()

if(NOT TARGET bywire::bywire)
  add_library(bywire::bywire SHARED IMPORTED)
  set_target_properties(bywire::bywire PROPERTIES
    IMPORTED_LOCATION "${_bywire_prefix}/lib/@SHARED@"
    IMPORTED_SONAME "@SONAME@"
    INTERFACE_INCLUDE_DIRECTORIES "${_bywire_prefix}/include")
endif()

if(NOT TARGET bywire::static AND EXISTS "${_bywire_prefix}/lib/libbywire.a")
  add_library(bywire::static STATIC IMPORTED)
  set_target_properties(bywire::static PROPERTIES
    IMPORTED_LOCATION "${_bywire_prefix}/lib/libbywire.a"
    IMPORTED_LINK_INTERFACE_LANGUAGES "C"
    INTERFACE_LINK_LIBRARIES "@LIBRARIES@"
    INTERFACE_INCLUDE_DIRECTORIES "${_bywire_prefix}/include")
endif()

unset(_bywire_prefix)
unset(_bywire_here)
unset(_bywire_installed)
unset(_bywire_file)
